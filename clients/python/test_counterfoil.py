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
told = []  # ids of the events of a feed


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

    def test_feed_misses_nothing(self):
        c = client()
        ended, wanted, errors = set(), [], []

        def read():
            try:
                for event in c.feed(provider="example", of="own", timeout=60):
                    self.assertTrue(event.standing and event.entry is None and event.operation is None)
                    if told:
                        self.assertGreater(int(event.id), int(told[-1]))
                    told.append(event.id)
                    if event.standing["terminal"]:
                        ended.add(event.standing["id"])
                    if wanted and wanted[0] in ended:
                        return
            except Exception as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        n = 0
        while not told and reader.is_alive():
            submit(c, f"py-feed-{n}")
            n += 1
        wanted.append(submit(c, "py-feed")["id"])
        reader.join()
        self.assertEqual(errors, [])

    def test_check_and_cancel_several(self):
        c = client()
        later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
        wish = {"provider": "example", "params": {"correlation": "py-check"}, "not_before": later}
        would = c.check("py-check", **wish)
        self.assertEqual((would["validation"]["would"], would["validation"]["status"]), ("record", 202))
        with self.assertRaises(Problem) as gone:
            c.get(would["id"])
        self.assertEqual(gone.exception.status, 404)
        with self.assertRaises(Problem) as bad:
            c.check("py-bad", "example", allow_overlap=True, adopt={"job_id": ""})
        self.assertEqual(sorted(e["field"] for e in bad.exception.errors), ["/adopt/job_id", "/allow_overlap"])
        with self.assertRaises(TypeError):
            c.submit("py-bad", "example", validate_only=True)
        both = c.check_batch("py-checks", [{"operation": wish}, {"operation": {"provider": "nobody", "params": {}}}])
        self.assertEqual((both["valid"], both["refused"]), (1, 1))
        op = c.submit("py-check", **wish)
        submitted.add(op["id"])
        self.assertEqual(op["id"], would["id"])
        self.assertEqual(c.check("py-check", **wish)["validation"]["would"], "replay")
        other = submit(c, "py-check-2", not_before=later)
        some = c.cancel_batch([{"id": op["id"], "idempotency_key": "py-own"}, "op_nobody"], why="not needed")
        self.assertTrue(some["items"][0]["operation"]["cancel"]["wished"])
        self.assertEqual((some["items"][0]["idempotency_key"], some["items"][1]["problem"]["code"]), ("py-own", "not_found"))
        every = c.cancel_batch([op["id"], other["id"]], mode="atomic", key="py-all")
        self.assertEqual((every["mode"], every["refused"]), ("atomic", 0))
        self.assertEqual(c.wait(other["id"], timeout=60)["state"], "cancelled")

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
        for asks, code in ((lambda: c.answer(op, {"answer": "yes"}), "input_not_wanted"),
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

        return self.listen(Handler), keys

    def listen(self, handler):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return Client(f"http://127.0.0.1:{server.server_port}", KEY, first=0.001, longest=0.01, tries=4)

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

    def test_where_a_feed_goes_on(self):
        def event(n):
            data = json.dumps({"data": {"operation": {"id": "op_1", "version": n}}})
            return f"id: {n}\nevent: dev.counterfoil.job.observed.v1\ndata: {data}\n\n"

        streams = [
            "retry: 2000\nid: 41\n\n",  # cut before the first event
            f"id: 41\n\n{event(42)}id: 43\nevent",  # within an event
            f"id: 42\n\n{event(42)}{event(43)}id: 5",  # told again, and an id in part
            ": hb\n\nid: 99\n\n: hb\n\nid: 7\n\n",  # others' facts, and one that goes back
        ]
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.path, self.headers["Last-Event-ID"]))
                end = len(asked) > len(streams)
                self.send_response(410 if end else 200)
                self.send_header("Content-Type", "application/problem+json" if end else "text/event-stream")
                self.end_headers()
                text = '{"code": "cursor_expired", "retryable": false}' if end else streams[len(asked) - 1]
                self.wfile.write(text.encode())

            def log_message(self, *args):
                pass

        c, ids = self.listen(Handler), []
        with self.assertRaises(Problem) as expired:
            for told_now in c.feed(provider="example", timeout=20):
                ids.append(told_now.id)
        self.assertEqual((expired.exception.status, expired.exception.code, ids), (410, "cursor_expired", ["42", "43"]))
        self.assertEqual(asked, [("/v1/events?provider=example", at) for at in (None, "41", "42", "43", "99")])

    def test_check_that_recorded(self):
        c, _ = self.serve(200, {"Content-Type": "application/json"}, b'{"id": "op_1"}')
        with self.assertRaises(ValueError):
            c.check("k", "example")

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
    print(json.dumps({"submitted": sorted(submitted), "told": told}))
    sys.exit(0 if passed else 1)
