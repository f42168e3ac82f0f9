// What the client promises, against a service whose every second answer is lost. The
// same as in ../python/test_counterfoil.py; tests/clients starts it all.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

import { Client, Lost, newKey, Operation, Problem, Submission } from "./counterfoil.js";

const need = (name: string): string => process.env[name] ?? assert.fail(`${name} is not set`);
const key = need("COUNTERFOIL_KEY");
const connect = (name = "COUNTERFOIL_SERVER"): Client => new Client(need(name), key, { first: 0.01, longest: 0.1 });
const submitted = new Set<string>();
const told: string[] = []; // ids of the events of a feed
const minute = (): { signal: AbortSignal } => ({ signal: AbortSignal.timeout(60_000) });

async function submit(c: Client, name: string, more: Partial<Submission> = {}): Promise<Operation> {
  const op = await c.submit(name, { provider: "example", params: { correlation: name, n: 1 }, ...more }, minute());
  submitted.add(op.id);
  return op;
}

async function all<T>(list: AsyncIterable<T>): Promise<T[]> {
  const out: T[] = [];
  for await (const item of list) {
    out.push(item);
  }
  return out;
}

async function refused(call: Promise<unknown>): Promise<Problem> {
  const error: unknown = await call.then(() => assert.fail("it was not refused"), (e: unknown) => e);
  assert(error instanceof Problem, String(error));
  return error;
}

const tests: { [name: string]: () => Promise<void> } = {
  async "one operation for each intent"() {
    const c = connect();
    for (let i = 0; i < 3; i++) {
      const op = await submit(c, `ts-${i}`);
      assert.equal((await c.wait(op.id, minute())).state, "succeeded");
      const same = await submit(c, `ts-${i}`);
      assert.deepEqual([same.id, same.original_status], [op.id, 202]);
      const r = await c.result(op.id);
      assert(r.data.length > 0 && r.sha256.length === 64);
    }
    const items = [0, 1].map((i) => ({ operation: { provider: "example", params: { correlation: `ts-b${i}` } } }));
    const batch = await c.submitBatch("ts-batch", items, "atomic", minute());
    batch.items.forEach((item) => submitted.add(item.operation?.id ?? assert.fail()));
    const seen = new Set<string>();
    const { signal } = minute();
    while ([...submitted].some((id) => !seen.has(id))) { // the list follows a little behind
      (await all(c.operations({ limit: 2 }, { signal }))).forEach((op) => seen.add(op.id));
    }
    const more = { tags: { lang: "ts", run: "a:1" }, client_reference: "ts order" };
    const op = await c.submit("ts-tagged", { provider: "example", params: { correlation: "ts-tagged" }, ...more }, minute());
    submitted.add(op.id);
    await c.wait(op.id, minute());
    for (const filter of [{ tag: ["lang:ts", "run:a:1"] }, { client_reference: "ts order" }]) {
      let found: string[] = [];
      while (found.length === 0) {
        found = (await all(c.operations(filter, { signal }))).map((o) => o.id);
      }
      assert.deepEqual(found, [op.id]);
    }
    assert.deepEqual(await all(c.operations({ tag: ["lang:ts", "run:a"] }, { signal })), []);
  },

  async "watch resumes"() {
    const c = connect();
    const op = await submit(c, "ts-watch");
    const seen = await all(c.watch(op.id, minute()));
    const versions = seen.map((o) => o.version);
    assert.deepEqual(versions, [...new Set(versions)].sort((a, b) => a - b));
    assert.equal(seen.at(-1)?.state, "succeeded");
    const told = (await all(c.events(op.id, "0", minute()))).flatMap((e) => e.entry?.seq ?? []);
    assert.deepEqual(told, (await all(c.timeline(op.id))).map((e) => e.seq));
  },

  async "watch without streams"() {
    const c = connect("COUNTERFOIL_NO_STREAMS");
    const op = await submit(c, "ts-polls");
    assert.equal((await all(c.watch(op.id, minute()))).at(-1)?.state, "succeeded");
    await assert.rejects(all(c.events(op.id, "", minute())));
  },

  async "the feed misses nothing"() {
    const c = connect();
    const stop = new AbortController();
    const signal = AbortSignal.any([stop.signal, minute().signal]);
    const ended = new Set<string>();
    const reading = (async () => {
      for await (const event of c.feed({ provider: "example", of: "own" }, "", { signal })) {
        assert(event.standing && !event.entry && !event.operation);
        assert(Number(event.id) > Number(told.at(-1) ?? 0), `${event.id} behind ${told.at(-1)}`);
        told.push(event.id);
        if (event.standing.terminal) {
          ended.add(event.standing.id);
        }
      }
    })();
    for (let i = 0; told.length === 0; i++) {
      await submit(c, `ts-feed-${i}`);
    }
    const { id } = await submit(c, "ts-feed");
    await Promise.race([reading, (async () => {
      while (!ended.has(id)) {
        await c.get(id, { signal });
      }
    })()]);
    stop.abort(new Error("enough"));
    await assert.rejects(reading, { message: "enough" });
  },

  async "where a feed goes on"() {
    const event = (n: number): string =>
      `id: ${n}\nevent: dev.counterfoil.job.observed.v1\ndata: {"data":{"operation":{"id":"op_1","version":${n}}}}\n\n`;
    const streams = [
      "retry: 2000\nid: 41\n\n", // cut before the first event
      `id: 41\n\n${event(42)}id: 43\nevent`, // within an event
      `id: 42\n\n${event(42)}${event(43)}id: 5`, // told again, and an id in part
      ": hb\n\nid: 99\n\n: hb\n\nid: 7\n\n", // others' facts, and one that goes back
    ];
    const asked: string[] = [];
    const server = createServer((r, w) => {
      asked.push(`${r.url} ${r.headers["last-event-id"] ?? "-"}`);
      const text = streams[asked.length - 1];
      if (text === undefined) {
        w.writeHead(410, { "Content-Type": "application/problem+json" }).end('{"code":"cursor_expired","retryable":false}');
        return;
      }
      w.writeHead(200, { "Content-Type": "text/event-stream" }).write(text, () => w.end());
    });
    await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
    const c = new Client(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, key, { first: 0.001, longest: 0.01 });
    const ids: string[] = [];
    const expired = await refused((async () => {
      for await (const e of c.feed({ provider: "example" }, "", minute())) {
        ids.push(e.id);
      }
    })());
    server.closeAllConnections();
    server.close();
    assert.deepEqual([expired.status, expired.code, ids], [410, "cursor_expired", ["42", "43"]]);
    assert.deepEqual(asked, ["-", "41", "42", "43", "99"].map((at) => `/v1/events?provider=example ${at}`));
  },

  async "check, and cancel several"() {
    const c = connect();
    const wish: Submission = { provider: "example", params: { correlation: "ts-check" }, not_before: new Date(Date.now() + 600_000).toISOString() };
    const would = await c.check("ts-check", wish, minute());
    assert.deepEqual([would.validation.would, would.validation.status], ["record", 202]);
    assert.equal((await refused(c.get(would.id))).status, 404);
    const bad = await refused(c.check("ts-bad", { provider: "example", allow_overlap: true, adopt: { job_id: "" } }));
    assert.deepEqual(bad.document.errors?.map((e) => e.field).sort(), ["/adopt/job_id", "/allow_overlap"]);
    const both = await c.checkBatch("ts-checks", [{ operation: wish }, { operation: { provider: "nobody" } }], "independent", minute());
    assert.deepEqual([both.valid, both.refused, both.items[0]?.operation?.id !== undefined], [1, 1, true]);
    const op = await c.submit("ts-check", wish, minute());
    submitted.add(op.id);
    assert.equal(op.id, would.id);
    assert.equal((await c.check("ts-check", wish, minute())).validation.would, "replay");
    const other = await submit(c, "ts-check-2", { not_before: wish.not_before });
    const some = await c.cancelBatch([{ id: op.id, idempotency_key: "ts-own" }, "op_nobody"], { why: "not needed" });
    assert.deepEqual([some.items[0]?.operation?.cancel?.wished, some.items[0]?.idempotency_key, some.items[1]?.problem?.code], [true, "ts-own", "not_found"]);
    const all = await c.cancelBatch([op.id, other.id], { mode: "atomic", key: "ts-all" });
    assert.deepEqual([all.mode, all.refused], ["atomic", 0]);
    assert.equal((await c.wait(other.id, minute())).state, "cancelled");
  },

  async "decide and cancel"() {
    const c = connect();
    let op = await submit(c, "ts-lost", { provider: "example-ask", account: "lost" });
    op = await c.wait(op.id, minute());
    assert.deepEqual([op.state, op.terminal], ["quarantined", false]);
    assert.equal((await c.decide(op.id, op.version, "ts-decide", { kind: "abandon", why: "no" })).state, "abandoned");
    op = await submit(c, "ts-later", { not_before: new Date(Date.now() + 600_000).toISOString() });
    assert((await c.pause(op.id)).paused);
    assert(!(await c.resume(op.id, { key: "ts-resume" })).paused);
    const early = await refused(c.result(op.id));
    assert.deepEqual([early.code, early.retryable, early.retryWith], ["result_not_ready", true, "same_key"]);
    const soon = (): { signal: AbortSignal } => ({ signal: AbortSignal.timeout(500) });
    await assert.rejects(c.wait(op.id, soon()), { name: "TimeoutError" });
    await assert.rejects(all(c.watch(op.id, soon())), { name: "TimeoutError" });
    const wanted = await refused(c.answer(op, { answer: "yes" }));
    const cleaned = await refused(c.cleanup(op.id, { why: "early" }));
    assert.deepEqual([wanted.code, cleaned.code], ["input_not_wanted", "cleanup_not_allowed"]);
    const ended = await c.wait((await submit(c, "ts-cleanup")).id, minute());
    assert.equal((await c.cleanup(ended.id, { why: "not needed", key: "ts-cleanup" })).state, "succeeded");
    await c.cancel(op.id, { why: "not needed" });
    assert.equal((await c.wait(op.id, minute())).state, "cancelled");
    const gone = await refused(c.result(op.id));
    assert.deepEqual([gone.status, gone.retryWith], [404, "never"]);
    assert("providers" in (await c.capabilities()));
  },

  async "which are sent again"() {
    const media = { "Content-Type": "application/problem+json" };
    const body = (retryable: boolean, retry_with: string): string => JSON.stringify({ code: "x", retryable, retry_with });
    const cases: [string, number, { [name: string]: string }, string, number][] = [
      ["may pass", 503, media, body(true, "same_key"), 4],
      ["a gateway", 502, {}, "", 4],
      ["cut", 200, { "Content-Length": "9" }, "{", 4],
      ["never", 503, media, body(true, "never"), 1],
      ["a new key", 400, media, body(true, "new_key"), 1],
      ["corrected", 422, media, body(false, "same_key"), 1],
      ["how it stands", 409, media, body(true, "same_key"), 1],
      ["later than it waits", 503, { ...media, "Retry-After": "3600" }, body(true, "same_key"), 1],
    ];
    for (const [name, status, headers, text, tries] of cases) {
      const keys: unknown[] = [];
      const server = createServer((r, w) => {
        keys.push(r.headers["idempotency-key"]);
        w.writeHead(status, headers).write(text, () => (name === "cut" ? w.destroy() : w.end()));
      });
      await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
      const c = new Client(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, key, { tries: 4, first: 0.001, longest: 0.01 });
      await assert.rejects(c.cancel("op_1", minute()), (e: unknown) => e instanceof Problem || e instanceof Lost);
      assert.deepEqual([name, keys.length, new Set(keys).size, typeof keys[0]], [name, tries, 1, "string"]);
      server.closeAllConnections();
      server.close();
    }
    assert.notEqual(newKey(), newKey());
    await assert.rejects(new Client("http://127.0.0.1:1", key, { tries: 3, first: 0.001 }).submit("k", { provider: "example" }), { name: "Lost", key: "k", tries: 3 });
    assert.throws(() => new Client("ftp://x"));
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test().catch((error: unknown) => {
    throw new Error(name, { cause: error });
  });
  console.error(`ok: ${name}`);
}
console.log(JSON.stringify({ submitted: [...submitted].sort(), told }));
