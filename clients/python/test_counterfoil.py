"""What the client promises, against a service whose every second answer is lost.

tests/clients starts it all and says where it is: COUNTERFOIL_SERVER loses answers and
cuts streams, COUNTERFOIL_NO_STREAMS lets no stream through.
"""

import json
import os
import sys
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.dont_write_bytecode = True
from counterfoil import Client, Lost, Problem, new_key  # noqa: E402

KEY = os.environ["COUNTERFOIL_KEY"]
submitted = set()


def client(server="COUNTERFOIL_SERVER"):
    return Client(os.environ[server], KEY, first=0.01, longest=0.1)


def submit(c, key, **more):
    op = c.submit(key, more.pop("provider", "example"), {"correlation": key, "n": 1}, timeout=60, **more)
    submitted.add(op["id"])
    return op


class AgainstTheService(unittest.TestCase):
    def test_one_operation_for_each_intent(self):
        c = client()
        for i in range(3):
            op = submit(c, f"py-{i}")
            self.assertEqual(c.wait(op["id"], timeout=60)["state"], "succeeded")
            again = submit(c, f"py-{i}")
            self.assertEqual((again["id"], again["original_status"]), (op["id"], 202))
            self.assertTrue(c.result(op["id"]).sha256)
        batch = c.submit_batch("py-batch", [{"operation": {"provider": "example", "params": {"correlation": f"py-b{i}"}}} for i in range(2)], mode="atomic")
        submitted.update(item["operation"]["id"] for item in batch["items"])
        seen = set()
        end = time.monotonic() + 30
        while not submitted <= seen and time.monotonic() < end:  # the list follows a little behind
            seen.update(op["id"] for op in c.operations(limit=2))
        self.assertLessEqual(submitted, seen)
        body = {"tags": {"lang": "py", "run": "a:1"}, "client_reference": "py order"}
        op = c.submit("py-tagged", "example", {"correlation": "py-tagged"}, **body)
        submitted.add(op["id"])
        c.wait(op["id"], timeout=60)
        for filter in ({"tag": ["lang:py", "run:a:1"]}, {"client_reference": "py order"}):
            end = time.monotonic() + 30
            while not (found := [o["id"] for o in c.operations(**filter)]) and time.monotonic() < end:
                pass
            self.assertEqual(found, [op["id"]])
        self.assertEqual(list(c.operations(tag=["lang:py", "run:a"])), [])

    def test_watch_resumes(self):
        c = client()
        op = submit(c, "py-watch")
        seen = list(c.watch(op["id"], timeout=60))
        versions = [o["version"] for o in seen]
        self.assertEqual(versions, sorted(set(versions)))
        self.assertEqual(seen[-1]["state"], "succeeded")
        told = [e.entry["seq"] for e in c.events(op["id"], "0", timeout=60) if e.entry]
        self.assertEqual(told, [e["seq"] for e in c.timeline(op["id"])])

    def test_watch_without_streams(self):
        c = client("COUNTERFOIL_NO_STREAMS")
        op = submit(c, "py-polls")
        self.assertEqual(list(c.watch(op["id"], timeout=60))[-1]["state"], "succeeded")
        with self.assertRaises(Exception):
            list(c.events(op["id"], timeout=5))

    def test_decide_and_cancel(self):
        c = client()
        op = submit(c, "py-lost", provider="example-ask", account="lost")
        op = c.wait(op["id"], timeout=60)
        self.assertEqual((op["state"], op["terminal"]), ("quarantined", False))
        self.assertEqual(c.decide(op["id"], op["version"], "py-decide", "abandon", why="no")["state"], "abandoned")
        later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
        op = submit(c, "py-later", not_before=later)
        self.assertTrue(c.pause(op["id"])["paused"])
        self.assertFalse(c.resume(op["id"], key="py-resume").get("paused"))
        with self.assertRaises(Problem) as early:
            c.result(op["id"])
        self.assertEqual((early.exception.code, early.exception.retryable, early.exception.retry_with), ("result_not_ready", True, "same_key"))
        with self.assertRaises(TimeoutError):
            c.wait(op["id"], timeout=1)
        with self.assertRaises(TimeoutError):
            list(c.watch(op["id"], timeout=1))
        for asks, code in ((lambda: c.answer(op["id"], {"answer": "yes"}), "input_not_wanted"),
                           (lambda: c.cleanup(op["id"], why="early"), "cleanup_not_allowed")):
            with self.assertRaises(Problem) as refused:
                asks()
            self.assertEqual((refused.exception.status, refused.exception.code), (409, code))
        ended = c.wait(submit(c, "py-cleanup")["id"], timeout=60)
        ended = c.cleanup(ended["id"], job_id=ended["job"]["id"], why="not needed", key="py-cleanup")
        self.assertEqual((ended["state"], ended["cleanup"]["job_id"]), ("succeeded", ended["job"]["id"]))
        c.cancel(op["id"], why="not needed")
        self.assertEqual(c.wait(op["id"], timeout=60)["state"], "cancelled")
        with self.assertRaises(Problem) as gone:
            c.result(op["id"])
        self.assertEqual((gone.exception.status, gone.exception.retry_with), (404, "never"))
        self.assertIn("providers", c.capabilities())


class Rules(unittest.TestCase):
    """Which requests are sent again, against a server that always answers the same."""

    def serve(self, status, headers, body):
        keys = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                keys.append(self.headers["Idempotency-Key"])
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return Client(f"http://127.0.0.1:{server.server_port}", KEY, first=0.001, longest=0.01, tries=4), keys

    def test_which(self):
        def problem(**members):
            return json.dumps({"code": "x", **members}).encode()

        media = {"Content-Type": "application/problem+json"}
        for name, status, headers, body, tries in [
            ("may pass", 503, media, problem(retryable=True, retry_with="same_key"), 4),
            ("a gateway", 502, {}, b"", 4),
            ("cut", 200, {"Content-Length": "9"}, b"{", 4),
            ("never", 503, media, problem(retryable=True, retry_with="never"), 1),
            ("a new key", 400, media, problem(retryable=True, retry_with="new_key"), 1),
            ("corrected", 422, media, problem(retryable=False, retry_with="same_key"), 1),
            ("how it stands", 409, media, problem(retryable=True, retry_with="same_key"), 1),
            ("later than it waits", 503, {**media, "Retry-After": "3600"}, problem(retryable=True, retry_with="same_key"), 1),
        ]:
            with self.subTest(name):
                c, keys = self.serve(status, headers, body)
                with self.assertRaises((Problem, Lost)):
                    c.cancel("op_1", timeout=10)
                self.assertEqual((len(keys), len(set(keys))), (tries, 1))
                self.assertTrue(keys[0])
        self.assertNotEqual(new_key(), new_key())

    def test_no_server(self):
        begun = time.monotonic()
        with self.assertRaises(Lost) as lost:
            Client("http://127.0.0.1:1", KEY, first=0.001, tries=3).submit("k", "example")
        self.assertEqual((lost.exception.key, lost.exception.tries), ("k", 3))
        self.assertLess(time.monotonic() - begun, 10)
        with self.assertRaises(ValueError):
            Client("ftp://x")


if __name__ == "__main__":
    passed = unittest.main(exit=False).result.wasSuccessful()
    print(json.dumps({"submitted": sorted(submitted)}))
    sys.exit(0 if passed else 1)
