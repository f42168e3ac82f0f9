"""A client of Counterfoil's HTTP API, in one file, with the standard library only.

It may be copied out. Python 3.10 or later. A Client can be used by several threads.

    from counterfoil import Client

    c = Client("http://127.0.0.1:7766", "cf_...")
    op = c.submit("report-17", "example", {"report": 17})
    op = c.wait(op["id"])
    print(op["state"], c.result(op["id"]).data)

Keys. Everything that changes something carries an idempotency key, which names one
intent for ever. Make it once for each thing that is wanted, keep it with that, and give
it to every call for it. Calls for which a key may be left out make one for themselves
and keep it for all of their tries.

Tries. A request whose answer was lost, and one whose problem says that the same request
may succeed later, is sent again with the same key. A request never gets another key,
and nothing is sent again after a problem that says never. ``timeout`` of a call, in
seconds, bounds all of it: its tries, its waits and what is yielded.

Operations are the JSON objects that the API answers with.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import http.client
import json
import random
import secrets
import ssl
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

__all__ = ["Client", "Event", "Lost", "Problem", "Result", "new_key"]

Operation = Dict[str, Any]

_LONGEST_WAIT = 55  # seconds; what the server waits at most
# A stream tells something at once, and shows every 15 s that it lives.
_FIRST_SILENCE, _LATER_SILENCE = 10.0, 40.0
_EMPTY_STREAMS = 3  # in a row, after which something between is taken to eat streams
_PREFIX = "dev.counterfoil."


def new_key() -> str:
    """Makes an idempotency key. Make one for each intent, not for each try."""
    return secrets.token_hex(16)


class Problem(Exception):
    """An answer that is not a success (RFC 9457).

    code is for machines and "" where the answer was not one of the API; retryable says
    whether the same request may succeed later; retry_with is the key to send it with:
    same_key, new_key or never; retry_after is in seconds, 0 if that was not said;
    document is the whole problem.
    """

    def __init__(self, status: int, document: Dict[str, Any], retry_after: float = 0):
        self.status = status
        self.document = document
        self.code: str = document.get("code", "")
        self.title: str = document.get("title", "")
        self.detail: str = document.get("detail", "")
        self.hint: str = document.get("hint", "")
        self.retryable: bool = bool(document.get("retryable", False))
        self.retry_with: str = document.get("retry_with", "")
        self.retry_after = retry_after
        self.errors: List[Dict[str, Any]] = document.get("errors") or []
        self.operation_id: str = document.get("operation_id", "")
        super().__init__(f"{self.code or 'HTTP %d' % status}: {self.detail or self.title}")


class Lost(Exception):
    """No answer came, or not all of it: whether the request was done is open.

    Sent again with the same key it is done once. key is "" for what needs none.
    """

    def __init__(self, method: str, path: str, key: str, tries: int, cause: BaseException):
        self.method, self.path, self.key, self.tries = method, path, key, tries
        super().__init__(f"{method} {path}: {cause or type(cause).__name__}")


@dataclass
class Result:
    """A result's bytes, held against their digest, and what they are."""

    data: bytes
    media_type: str
    sha256: str  # hex; "" if the server does not say


@dataclass
class Event:
    """One event of an operation's stream, or of a feed.

    id is where the stream goes on behind it. A fact has entry and standing, the
    operation as the fact left it; that of a feed has no entry. operation.snapshot.v1, operation.reset.v1 and
    operation.ended.v1 have the operation.
    """

    id: str
    type: str  # without its prefix: "job.observed.v1"
    data: Dict[str, Any]
    operation: Optional[Operation] = None
    entry: Optional[Dict[str, Any]] = None
    standing: Optional[Dict[str, Any]] = None


class _Cut(Exception):
    """A stream ended before the operation did."""


class _Eaten(Exception):
    """Streams do not come through: something between keeps them back."""


class _Over(TimeoutError):
    """The time that the caller gave is over; no answer is waited for any more."""


class _Answer:
    def __init__(self, status: int, headers: Any, body: bytes):
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Dict[str, Any]:
        return json.loads(self.body)

    def operation(self) -> Operation:
        return self.json()


class _Deadline:
    def __init__(self, timeout: Optional[float]):
        self.end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float:
        return float("inf") if self.end is None else self.end - time.monotonic()

    def within(self, seconds: float) -> float:
        left = self.left()
        if left <= 0:
            raise _Over("the time for the call is over")
        return min(seconds, left)


def _same(problem: Problem) -> bool:
    return problem.retryable and problem.retry_with not in ("never", "new_key")


def _again(error: Exception) -> bool:
    """Whether the client sends it again by itself. A conflict says how the operation
    stands, and takes a wait for it."""
    if isinstance(error, Problem):
        return error.status != 409 and _same(error)
    return isinstance(error, Lost) and not isinstance(error.__cause__, ssl.SSLCertVerificationError)


class Client:
    """Calls one server.

    base_url is like "http://127.0.0.1:7766", key the bearer text, "cf_...". One request
    is sent at most ``tries`` times; the wait before the second is about ``first``
    seconds, then twice as long each time up to ``longest``. A longer Retry-After is
    kept to up to ``patience`` seconds. An answer that stalls for ``answer`` seconds
    counts as lost.
    """

    def __init__(self, base_url: str, key: str = "", *, tries: int = 8, first: float = 0.25,
                 longest: float = 10.0, patience: float = 300.0, answer: float = 60.0):
        url = urllib.parse.urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment or url.username:
            raise ValueError("the server's address must look like http://host:port")
        self._url = url
        self._key = key
        self._tries, self._first, self._longest = tries, first, longest
        self._patience, self._answer = patience, answer

    # What changes something.

    def submit(self, key: str, provider: str, params: Optional[Dict[str, Any]] = None, *,
               timeout: Optional[float] = None, **more: Any) -> Operation:
        """Asks for an operation under your key. An answer with original_status says that
        the key had named the operation before, which after a lost answer can be the doing
        of this very call. ``more`` are further members of the request:

        account, action; deadlines: {"approval", "create", "result", "cancel", "collect"},
        lengths of time such as "90s" or RFC 3339 times; not_before, a time; tags, names to
        values; session and client_reference, labels of your own; max_cost, a decimal as
        text; expect and approval, texts; replaces and retry_of, an earlier operation of
        yours, with allow_overlap=True if two jobs at once are acceptable; adopt:
        {"job_id": ...} follows a job that was created elsewhere, and creates none.

        What is answered has, beside how it stands, replaced_by and retried_by, input (what
        its job waits for), approval, cost and the like; GET /openapi.json says all of it."""
        body = _submission(provider, params, more)
        return self._call("POST", "/v1/operations", body=body, key=key, timeout=timeout).operation()

    def submit_batch(self, key: str, items: List[Dict[str, Any]], *, mode: str = "independent",
                     timeout: Optional[float] = None) -> Dict[str, Any]:
        """Asks for up to 100 operations: each item is {"operation": {...}},
        known by the key and its place in the list. mode is independent or atomic. Items that were
        refused are no error; each has an operation or a problem."""
        body = {"mode": mode, "items": items}
        return self._call("POST", "/v1/operations:batch", body=body, key=key, timeout=timeout).json()

    def check(self, key: str, provider: str, params: Optional[Dict[str, Any]] = None, *,
              timeout: Optional[float] = None, **more: Any) -> Operation:
        """Says what ``submit`` would do with the same arguments: records nothing, and
        leaves the key as unused as before. The answer is the operation as it would be
        recorded, or the one that the key names, with validation: would (record or
        replay), status and warnings. What would be refused raises the same Problem."""
        body = {**_submission(provider, params, more), "validate_only": True}
        return _checked(self._call("POST", "/v1/operations", body=body, key=key, timeout=timeout).operation())

    def check_batch(self, key: str, items: List[Dict[str, Any]], *, mode: str = "independent",
                    timeout: Optional[float] = None) -> Dict[str, Any]:
        """Says what ``submit_batch`` would do: valid counts what would be recorded, and
        the operation of each item that would not be refused has validation."""
        body = {"mode": mode, "items": items, "validate_only": True}
        batch = self._call("POST", "/v1/operations:batch", body=body, key=key, timeout=timeout).json()
        for item in batch["items"]:
            if item.get("operation"):
                _checked(item["operation"])
        return batch

    def cancel(self, id: str, *, why: str = "", key: str = "", timeout: Optional[float] = None) -> Operation:
        """Asks for its cancellation. That it was asked for does not mean that it will be."""
        return self._act(id, "cancel", why, key, timeout)

    def cancel_batch(self, items: List[Union[str, Dict[str, Any]]], *, why: str = "", mode: str = "independent",
                     key: str = "", timeout: Optional[float] = None) -> Dict[str, Any]:
        """Asks for the cancellation of up to 100 operations: each item is an id, or {"id":
        ...} with if_match, the version that it must still have such as '"v7"', or an
        idempotency_key of its own. mode is independent or atomic. Items that were refused
        are no error; each has an operation or a problem."""
        body: Dict[str, Any] = {"mode": mode, "items": [{"id": item} if isinstance(item, str) else item for item in items]}
        if why:
            body["why"] = why
        return self._call("POST", "/v1/operations:cancel", body=body, key=key or new_key(), timeout=timeout).json()

    def pause(self, id: str, *, why: str = "", key: str = "", timeout: Optional[float] = None) -> Operation:
        """Rests its creates and collections; cancels, reads and deadlines go on."""
        return self._act(id, "pause", why, key, timeout)

    def resume(self, id: str, *, why: str = "", key: str = "", timeout: Optional[float] = None) -> Operation:
        """Ends its pause."""
        return self._act(id, "resume", why, key, timeout)

    def answer(self, op: Dict[str, Any], input: Dict[str, Any], *, key: str = "",
               timeout: Optional[float] = None) -> Operation:
        """Answers what the job of the operation waited for when ``op`` was read, as the
        person saw it. If it asks something else by now, the answer is refused with the
        code question_differs. ``input.given`` says what came of it."""
        question = op.get("input", {}).get("question")
        body = {**({"question": question} if question else {}), "input": input}
        return self._call("POST", _path(op["id"]) + "/input", body=body, key=key or new_key(),
                          timeout=timeout).operation()

    def cleanup(self, id: str, *, job_id: Optional[str] = None, why: str = "", key: str = "",
                timeout: Optional[float] = None) -> Operation:
        """Has removed what a job of it left, its own unless one is named. It must have
        ended or stopped."""
        body = {"why": why} if why else {}
        if job_id is not None:  # an empty one must not be that of the operation's own
            body["job_id"] = job_id
        return self._call("POST", _path(id) + "/cleanup", body=body, key=key or new_key(), timeout=timeout).operation()

    def decide(self, id: str, version: int, key: str, kind: str, *, timeout: Optional[float] = None,
               **more: Any) -> Operation:
        """Records a decision made on this version of the operation. ``more``: why,
        job_id, deadline, until, evidence, accept_risk, and digest with the kinds
        approve and deny."""
        return self._call("POST", _path(id) + "/decisions", body={"kind": kind, **more}, key=key,
                          headers={"If-Match": f'"v{version}"'}, timeout=timeout).operation()

    def _act(self, id: str, action: str, why: str, key: str, timeout: Optional[float]) -> Operation:
        body = {"why": why} if why else {}
        return self._call("POST", f"{_path(id)}/{action}", body=body, key=key or new_key(), timeout=timeout).operation()

    # What reads.

    def get(self, id: str, *, timeout: Optional[float] = None) -> Operation:
        """Reads an operation."""
        return self._call("GET", _path(id), timeout=timeout).operation()

    def wait(self, id: str, *, timeout: Optional[float] = None) -> Operation:
        """Reads an operation once it is done: it has ended, or is stopped until somebody
        decides. Raises TimeoutError when the time is over."""
        deadline = _Deadline(timeout)
        tag = ""
        rest = 1.0
        while True:
            begun = time.monotonic()
            op, tag = self._poll(id, tag, deadline, "?until=done")
            if op is not None:
                if op.get("done"):
                    return op
                rest = min(max(op.get("next_poll_after", 0), 1), 10)
            elif time.monotonic() - begun < 1:
                time.sleep(deadline.within(rest))  # something between does not let the wait through

    def watch(self, id: str, *, timeout: Optional[float] = None) -> Iterator[Operation]:
        """Yields the operation as it is and then after each change it sees, until it is
        done. Several changes between two looks are one. It follows the operation's
        stream, resumes it where it is cut, and does with waits where streams do not come
        through or too many are open."""
        deadline = _Deadline(timeout)
        version, done = 0, False
        try:
            for event in self._events(_path(id) + "/events", "", deadline, True):
                op = event.operation
                if event.standing and event.standing["version"] > version:
                    op = self._call("GET", _path(id), deadline=deadline).operation()
                if op and op["version"] > version:
                    version, done = op["version"], op["done"]
                    yield op
                    if done:
                        return
            op = self._call("GET", _path(id), deadline=deadline).operation()
            if op["version"] > version:
                yield op
            return
        except _Eaten:
            pass
        tag = f'"v{version}"' if version else ""
        while not done:
            begun = time.monotonic()
            op, tag = self._poll(id, tag, deadline, "")
            if op is not None and op["version"] > version:
                version, done = op["version"], op["done"]
                yield op
            elif time.monotonic() - begun < 1:
                time.sleep(deadline.within(1))

    def events(self, id: str, last: str = "", *, timeout: Optional[float] = None) -> Iterator[Event]:
        """Yields what happens to an operation, each fact once and in order, until it has
        ended: first how it stands, or behind the event with the id ``last`` what was
        missed. "0" gives all from the first fact on."""
        return self._events(_path(id) + "/events", last, _Deadline(timeout), False)

    def feed(self, last: str = "", *, of: str = "", provider: str = "", timeout: Optional[float] = None) -> Iterator[Event]:
        """Yields what happens to all operations, each fact once and in order, from now on
        or behind the event with the id ``last``; each has the standing, and no entry.
        ``of`` is own, team or all. Where the stream is cut it goes on behind what was
        told, also if that was nothing yet. It never ends by itself. A Problem with the
        code cursor_expired says that more has happened since ``last`` than is told
        again: ``operations`` gives how things stand, and "" a feed from now on."""
        query = urllib.parse.urlencode({name: text for name, text in (("of", of), ("provider", provider)) if text})
        return self._events("/v1/events" + ("?" + query if query else ""), last, _Deadline(timeout), False, True)

    def operations(self, *, timeout: Optional[float] = None, **filter: Any) -> Iterator[Operation]:
        """Yields the operations of the list, newest first, page after page. The filter:
        of, state, provider, session, client_reference, tag (a list of "name:value", of which
        all must match), limit (of a page), cursor."""
        deadline = _Deadline(timeout)
        while True:
            page = self._call("GET", "/v1/operations?" + urllib.parse.urlencode(filter, doseq=True), deadline=deadline).json()
            yield from page["items"]
            filter["cursor"] = page.get("next_cursor", "")
            if not filter["cursor"]:
                return

    def timeline(self, id: str, *, after: int = 0, timeout: Optional[float] = None) -> Iterator[Dict[str, Any]]:
        """Yields the facts of an operation with what each did, oldest first."""
        deadline = _Deadline(timeout)
        while True:
            page = self._call("GET", f"{_path(id)}/timeline?after={after}", deadline=deadline).json()
            yield from page["entries"]
            if page.get("next_after", 0) <= after:
                return
            after = page["next_after"]

    def result(self, id: str, *, file: str = "", unaccepted: bool = False, timeout: Optional[float] = None) -> Result:
        """Reads a result into memory: that of a single body, or with ``file`` one of
        several by its name or place. ``unaccepted`` gives one that failed a check, too.
        Before it is there it raises a Problem with the code result_not_ready."""
        query = {"file": file} if file else {"unaccepted": "true"} if unaccepted else {}
        path = _path(id) + "/result" + ("?" + urllib.parse.urlencode(query) if query else "")
        a = self._call("GET", path, timeout=timeout)
        digest = ""
        text = a.headers.get("Content-Digest", "")
        if text.startswith("sha-256=:"):
            digest = base64.b64decode(text[len("sha-256=:"):].rstrip(":")).hex()
            if hashlib.sha256(a.body).hexdigest() != digest:
                raise ValueError("the result's bytes are not those of its digest")
        return Result(a.body, a.headers.get("Content-Type", ""), digest)

    def capabilities(self, *, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Reads what you may ask for, and what not and why."""
        return self._call("GET", "/v1/capabilities", timeout=timeout).json()

    # How.

    def _poll(self, id: str, tag: str, deadline: _Deadline, query: str) -> Tuple[Optional[Operation], str]:
        headers = {}
        wait = int(deadline.within(_LONGEST_WAIT))
        if tag:
            headers["If-None-Match"] = tag
            if wait:
                headers["Prefer"] = f"wait={wait}"
        a = self._call("GET", _path(id) + query, headers=headers, deadline=deadline, extra=wait)
        if a.status == 304:
            return None, tag
        return a.operation(), a.headers.get("ETag") or tag

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.hostname or "", self._url.port, timeout=seconds)

    def _headers(self, more: Dict[str, str]) -> Dict[str, str]:
        headers = dict(more)
        if self._key:
            headers["Authorization"] = "Bearer " + self._key
        return headers

    def _call(self, method: str, path: str, *, body: Any = None, key: str = "",
              headers: Optional[Dict[str, str]] = None, timeout: Optional[float] = None,
              deadline: Optional[_Deadline] = None, extra: float = 0) -> _Answer:
        deadline = deadline or _Deadline(timeout)
        headers = self._headers(headers or {})
        text = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            text = json.dumps(body, allow_nan=False).encode()
        if key:
            headers["Idempotency-Key"] = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        tries = 0
        while True:
            tries += 1
            seconds = deadline.within(self._answer + extra)
            try:
                return self._once(method, path, text, headers, seconds)
            except (OSError, http.client.HTTPException) as cause:
                error: Exception = Lost(method, path, key, tries, cause)
                error.__cause__ = cause
            except Problem as problem:
                error = problem
            if not _again(error) or tries >= self._tries:
                raise error
            self._pause(tries, error, deadline)

    def _once(self, method: str, path: str, text: Optional[bytes], headers: Dict[str, str], seconds: float) -> _Answer:
        connection = self._connect(seconds)
        try:
            connection.request(method, self._url.path.rstrip("/") + path, body=text, headers=headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status < 300 or response.status == 304:
            return _Answer(response.status, response.headers, body)
        raise _problem(response.status, response.headers, body)

    def _pause(self, tries: int, error: Exception, deadline: _Deadline) -> None:
        """Waits before the next try, or raises the error if there is to be none."""
        wait = min(self._first * 2 ** min(tries - 1, 16), self._longest) * random.uniform(0.5, 1)
        if isinstance(error, Problem):
            wait = max(wait, error.retry_after)
        if wait > max(self._patience, self._longest) or wait >= deadline.left():
            raise error
        time.sleep(wait)

    def _events(self, path: str, last: str, deadline: _Deadline, fallback: bool,
                endless: bool = False) -> Iterator[Event]:
        cursor = [last]
        failures = empty = 0
        while True:
            got = [0]
            error: Exception
            try:
                yield from self._stream(path, cursor, got, deadline, endless)
                return
            except _Over:
                raise
            except _Eaten as eaten:
                if fallback:
                    raise
                error = eaten
            except Problem as problem:
                other = problem.code in ("too_many_streams", "not_acceptable") or not problem.code and not problem.retryable
                if fallback and other:
                    raise _Eaten() from problem
                error = problem
            except (_Cut, OSError, http.client.HTTPException) as cause:
                error = Lost("GET", path, "", failures + 1, cause)
                error.__cause__ = cause
                if isinstance(cause, _Cut):
                    empty = 0 if got[0] else empty + 1
                if fallback and (empty >= _EMPTY_STREAMS or isinstance(cause, TimeoutError) and not got[0]):
                    raise _Eaten() from cause
            failures = 1 if got[0] else failures + 1
            if not _again(error) or failures >= self._tries:
                raise error
            self._pause(failures, error, deadline)

    def _stream(self, path: str, cursor: List[str], got: List[int], deadline: _Deadline,
                endless: bool) -> Iterator[Event]:
        headers = self._headers({"Accept": "text/event-stream"})
        if cursor[0]:
            headers["Last-Event-ID"] = cursor[0]
        connection = self._connect(deadline.within(_FIRST_SILENCE))
        try:
            connection.request("GET", self._url.path.rstrip("/") + path, headers=headers)
            sock = connection.sock
            response = connection.getresponse()
            if response.status == 204 and not endless:
                return
            if response.status >= 300:
                raise _problem(response.status, response.headers, response.read())
            if response.headers.get_content_type() != "text/event-stream":
                raise _Eaten("the answer to a request for a stream is none")
            name, at, data, placed = "", cursor[0], [], False
            while True:
                try:
                    line = response.readline()
                except TimeoutError as silent:
                    if deadline.left() <= 0:
                        raise _Over("the time for the call is over") from silent
                    raise
                except (OSError, http.client.HTTPException) as cause:
                    raise _Cut() from cause
                if not line.endswith(b"\n"):
                    raise _Cut()
                got[0] += 1
                text = line.decode("utf-8").rstrip("\r\n")
                if text:
                    field, _, value = text.partition(":")
                    value = value[1:] if value.startswith(" ") else value
                    if field == "id":
                        at, placed = value, True
                    elif field == "event":
                        name = value
                    elif field == "data":
                        data.append(value)
                elif data:
                    event = _event(at, name, "\n".join(data))
                    name, data, placed = "", [], False
                    if event.operation is None and not _behind(at, cursor[0]):
                        continue  # told before
                    cursor[0] = at  # what is given is not told again
                    yield event
                    if event.type == "operation.ended.v1" and not endless:
                        return
                else:
                    if placed and _behind(at, cursor[0]):
                        cursor[0] = at  # it says where the stream is, and tells nothing
                    name, placed = "", False
                sock.settimeout(deadline.within(_LATER_SILENCE))
        finally:
            connection.close()


def _submission(provider: str, params: Optional[Dict[str, Any]], more: Dict[str, Any]) -> Dict[str, Any]:
    if "validate_only" in more:
        raise TypeError("validate_only is no member of a submit here: call check, which records nothing")
    return {"provider": provider, "params": params or {}, **more}


def _checked(op: Operation) -> Operation:
    if "validation" not in op:
        raise ValueError("the answer does not say that nothing was recorded: read the list, and look what stands between")
    return op


def _behind(at: str, last: str) -> bool:
    """Whether the id of an event is behind the last one, if there was any."""
    return not last or int(at) > int(last)


def _path(id: str) -> str:
    return "/v1/operations/" + urllib.parse.quote(id, safe="")


def _event(at: str, name: str, text: str) -> Event:
    event = Event(at, name[len(_PREFIX):] if name.startswith(_PREFIX) else name, json.loads(text))
    data = event.data["data"]
    if event.type in ("operation.snapshot.v1", "operation.reset.v1", "operation.ended.v1"):
        event.operation = data
    else:
        event.entry, event.standing = data.get("entry"), data.get("operation")
    return event


def _problem(status: int, headers: Any, body: bytes) -> Problem:
    document = None
    if headers.get_content_type() == "application/problem+json":
        try:
            document = json.loads(body)
        except ValueError:
            pass
    if not isinstance(document, dict) or not document.get("code"):
        title = http.client.responses.get(status, "")
        passing = status in (408, 429, 502, 503, 504)
        document = {
            "title": title, "detail": f"the answer is not one of the API: {status} {title}", "retryable": passing,
            "retry_with": "same_key" if passing else "", "hint": "check the server's address and what stands between",
        }
    return Problem(status, document, _retry_after(headers.get("Retry-After", "")))


def _retry_after(text: str) -> float:
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, IndexError):
        return 0.0
