/**
 * A client of Counterfoil's HTTP API, in one file, without dependencies: it needs fetch,
 * as Node 20 and later and browsers have it. It may be copied out.
 *
 *     const c = new Client("http://127.0.0.1:7766", "cf_...");
 *     let op = await c.submit("report-17", { provider: "example", params: { report: 17 } });
 *     op = await c.wait(op.id);
 *
 * Keys. Everything that changes something carries an idempotency key, which names one
 * intent for ever. Make it once for each thing that is wanted, keep it with that, and give
 * it to every call for it. Calls for which a key may be left out make one for themselves
 * and keep it for all of their tries.
 *
 * Tries. A request whose answer was lost, and one whose problem says that the same request
 * may succeed later, is sent again with the same key. A request never gets another key,
 * and nothing is sent again after a problem that says never. The signal of a call ends all
 * of it: its tries, its waits and what is yielded.
 */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** An operation as the API shows it. Times are RFC 3339. */
export interface Operation {
  id: string;
  provider: string;
  account: string;
  state: string;
  terminal: boolean;
  done: boolean;
  version: number;
  reason?: string;
  quarantine?: string;
  /** Seconds until reading again may show something; 0: nothing new by itself. */
  next_poll_after?: number;
  /** The status of the first answer, where the call's key had recorded it before. */
  original_status?: number;
  allowed?: { action: string; method: string; href: string; decisions?: string[]; jobs?: string[] }[];
  /** Whose it is, where that is another than the caller's. */
  principal?: string;
  outcome?: string;
  because?: string;
  waiting_for?: string;
  next_look?: string;
  started: string;
  /** When the state was entered. */
  since: string;
  /** Creates and collections rest. */
  paused?: { by: string; since: string };
  /** What holds after a create whose answer was lost. */
  guarantee: { name: string; words: string };
  /** Create requests. */
  attempts: { permitted: number; not_sent: number; unresolved: number };
  /** Those that run. */
  deadlines: { approval?: string; create?: string; result?: string; cancel?: string; collect?: string };
  /** What the provider said went wrong, or the last trouble in asking it. */
  problem?: { code?: string; message?: string; class?: string };
  /** Jobs that may be this operation's, and jobs of it that none follows. */
  candidates?: string[];
  strays?: string[];
  /** Of its newest fact in the ledger. */
  sequence: number;
  session?: string;
  client_reference?: string;
  not_before?: string;
  replaces?: string;
  retry_of?: string;
  /** The newest operations that take its place, and that are other tries of it. */
  replaced_by?: string[];
  retried_by?: string[];
  tags?: { name: string; value: string }[];
  /** The rule that the result is held against. */
  expect?: string;
  /** Decimals as text; max is max_cost of the submission. */
  cost?: { amount: string; unit: string; max?: string };
  /** Where a rule of the server's policy demands one. */
  approval?: { state: string; digest: string; params_sha256: string; demanded_by: { rule: string; why?: string; failed?: string }[]; by?: string; at?: string };
  /** A page of the service for the person who is to decide or to approve. */
  decision_url?: string;
  job?: { id: string; remote_state?: string; class?: string; progress?: string; adopted?: boolean; updated_at?: string };
  /** What its job waits for, and the newest answer that was given here. */
  input?: { url?: string; text?: string; question?: string; given?: Asked };
  cleanup?: Asked & { job_id: string; removed?: string[] };
  cancel?: { wished: boolean; at?: string; possible: boolean; too_late: boolean };
  result?: { size: number; media_type: string; sha256: string; checks?: { name: string; passed: boolean; detail?: string }[] };
  [name: string]: unknown;
}

/** A call that somebody asked for: status is waiting, sending, done, refused, unknown, not_sent or dropped. */
export interface Asked {
  status: string;
  by?: string;
  at?: string;
  number?: number;
  problem?: { code?: string; message?: string; class?: string };
}

/** What a submit would do; nothing was recorded. */
export interface Checked extends Operation {
  validation: {
    would: "record" | "replay";
    /** That it would be answered with. */
    status: number;
    warnings: { code: string; message: string }[];
  };
}

export interface Submission {
  provider: string;
  account?: string;
  action?: string;
  params?: { [name: string]: Json };
  deadlines?: { approval?: string; create?: string; result?: string; cancel?: string; collect?: string };
  not_before?: string;
  expect?: string;
  max_cost?: string;
  tags?: { [name: string]: string };
  approval?: string;
  /** An earlier operation of yours, as retry_of is. */
  replaces?: string;
  retry_of?: string;
  /** With these two: two jobs at once are acceptable. */
  allow_overlap?: boolean;
  /** Follows a job that was created elsewhere, and creates none. */
  adopt?: { job_id: string };
  session?: string;
  client_reference?: string;
}

/** An operation whose cancellation is asked for with others. */
export interface CancelItem {
  id: string;
  /** The item's own; without it that of the whole. */
  idempotency_key?: string;
  /** The version that it must still have: '"v7"'. */
  if_match?: string;
}

export interface Decision {
  kind: string;
  why?: string;
  job_id?: string;
  deadline?: string;
  until?: string;
  evidence?: string;
  accept_risk?: boolean;
  /** approval.digest of the operation, with the kinds approve and deny. */
  digest?: string;
}

export interface Batch {
  mode: string;
  transaction: string;
  recorded: number;
  replayed: number;
  refused: number;
  /** Of a check: they would be recorded. */
  valid?: number;
  /** In the order of the request; each has an operation or a problem. */
  items: {
    index: number; idempotency_key?: string; status: number; replayed?: boolean; operation?: Operation; problem?: ProblemDocument;
  }[];
}

export interface Entry {
  seq: number;
  time: string;
  type: string;
  [name: string]: unknown;
}

export interface Result {
  data: Uint8Array;
  mediaType: string;
  /** Hex; "" if the server does not say. The data was held against it. */
  sha256: string;
}

/**
 * One event of an operation's stream: a fact, with entry and standing, or how the operation
 * stands. Of a feed it is a fact with standing alone.
 */
export interface Event {
  /** Where the stream goes on behind this event. */
  id: string;
  /** Without its prefix: "job.observed.v1". */
  type: string;
  operation?: Operation;
  entry?: Entry;
  standing?: { id: string; state: string; terminal: boolean; done: boolean; version: number };
}

export interface ProblemDocument {
  code?: string;
  title?: string;
  detail?: string;
  status?: number;
  retryable?: boolean;
  retry_with?: string;
  hint?: string;
  errors?: { field: string; code: string; message: string; allowed?: string[] }[];
  operation_id?: string;
  [name: string]: unknown;
}

/** An answer that is not a success (RFC 9457). */
export class Problem extends Error {
  readonly code: string;
  readonly retryable: boolean;
  /** same_key, new_key or never: the key of the next try. */
  readonly retryWith: string;

  constructor(
    readonly status: number,
    readonly document: ProblemDocument,
    /** Seconds; 0 if that was not said. */
    readonly retryAfter: number,
  ) {
    super(`${document.code || `HTTP ${status}`}: ${document.detail || document.title || ""}`);
    this.name = "Problem";
    this.code = document.code ?? "";
    this.retryable = document.retryable ?? false;
    this.retryWith = document.retry_with ?? "";
  }
}

/** No answer came, or not all of it: sent again with the same key it is done once. */
export class Lost extends Error {
  constructor(
    readonly method: string,
    readonly path: string,
    /** "" for what needs none. */
    readonly key: string,
    readonly tries: number,
    cause: unknown,
  ) {
    super(`${method} ${path}: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    this.name = "Lost";
  }
}

export interface Options {
  /** How often one request is sent at most: 8. */
  tries?: number;
  /** Seconds before the second try, about: 0.25. Twice as long each time, up to longest: 10. */
  first?: number;
  longest?: number;
  /** Seconds of a Retry-After that are kept to at most: 300. */
  patience?: number;
  /** Seconds after which an answer counts as lost: 60. */
  answer?: number;
}

export interface Call {
  /** Ends the call with all of its tries and waits. */
  signal?: AbortSignal;
}

const longestWait = 55; // seconds; what the server waits at most
const firstSilence = 10; // a stream tells something at once,
const laterSilence = 40; // and shows every 15 s that it lives
const emptyStreams = 3; // in a row, after which something between is taken to eat streams
const prefix = "dev.counterfoil.";

class Eaten extends Error {}
class Cut extends Error {}

/** Makes an idempotency key: one for each intent, not for each try. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

function again(error: unknown): boolean {
  if (error instanceof Problem) {
    // A conflict says how the operation stands, and takes a wait for it.
    return error.status !== 409 && error.retryable && error.retryWith !== "never" && error.retryWith !== "new_key";
  }
  return error instanceof Lost;
}

interface Answer {
  status: number;
  headers: Headers;
  body: Uint8Array<ArrayBuffer>;
}

interface Request extends Call {
  body?: unknown;
  key?: string;
  headers?: { [name: string]: string };
  extra?: number;
}

export class Client {
  private readonly base: string;
  private readonly o: Required<Options>;

  /** baseURL is like "http://127.0.0.1:7766", key the bearer text, "cf_...". */
  constructor(
    baseURL: string,
    private readonly key = "",
    options: Options = {},
  ) {
    const url = new URL(baseURL);
    if (!/^https?:$/.test(url.protocol) || url.search || url.hash || url.username) {
      throw new TypeError("the server's address must look like http://host:port");
    }
    this.base = baseURL.replace(/\/+$/, "");
    this.o = { tries: 8, first: 0.25, longest: 10, patience: 300, answer: 60, ...options };
  }

  // What changes something.

  /**
   * Asks for an operation under your key. An answer with original_status says that the key
   * had named it before, which after a lost answer can be the doing of this very call.
   */
  async submit(key: string, s: Submission, call: Call = {}): Promise<Operation> {
    return object(await this.call("POST", "/v1/operations", { ...call, key, body: { params: {}, ...s } }));
  }

  /** Asks for up to 100 operations. Items that were refused are no error. */
  async submitBatch(
    key: string,
    items: { operation: Submission }[],
    mode: "independent" | "atomic" = "independent",
    call: Call = {},
  ): Promise<Batch> {
    const whole = items.map((item) => ({ ...item, operation: { params: {}, ...item.operation } }));
    return object(await this.call("POST", "/v1/operations:batch", { ...call, key, body: { mode, items: whole } }));
  }

  /**
   * Says what submit would do with the same arguments: records nothing, and leaves the key as
   * unused as before. It gives the operation as it would be recorded, or the one that the key
   * names, with validation. What would be refused throws the same Problem.
   */
  async check(key: string, s: Submission, call: Call = {}): Promise<Checked> {
    const body = { params: {}, ...s, validate_only: true };
    return checked(object<Operation>(await this.call("POST", "/v1/operations", { ...call, key, body })));
  }

  /** Says what submitBatch would do; the operation of each item that would not be refused is Checked. */
  async checkBatch(
    key: string,
    items: { operation: Submission }[],
    mode: "independent" | "atomic" = "independent",
    call: Call = {},
  ): Promise<Batch> {
    const whole = items.map((item) => ({ ...item, operation: { params: {}, ...item.operation } }));
    const body = { mode, items: whole, validate_only: true };
    const batch = object<Batch>(await this.call("POST", "/v1/operations:batch", { ...call, key, body }));
    batch.items.forEach((item) => item.operation && checked(item.operation));
    return batch;
  }

  /** Asks for the cancellation of up to 100 operations. Items that were refused are no error. */
  async cancelBatch(
    items: (string | CancelItem)[],
    o: Call & { why?: string; key?: string; mode?: "independent" | "atomic" } = {},
  ): Promise<Batch> {
    const whole = items.map((item) => (typeof item === "string" ? { id: item } : item));
    const body = { mode: o.mode ?? "independent", items: whole, ...(o.why ? { why: o.why } : {}) };
    return object(await this.call("POST", "/v1/operations:cancel", { signal: o.signal, key: o.key || newKey(), body }));
  }

  /** Asks for its cancellation. That it was asked for does not mean that it will be. */
  cancel(id: string, o: Call & { why?: string; key?: string } = {}): Promise<Operation> {
    return this.act(id, "cancel", o);
  }

  /** Rests its creates and collections; cancels, reads and deadlines go on. */
  pause(id: string, o: Call & { why?: string; key?: string } = {}): Promise<Operation> {
    return this.act(id, "pause", o);
  }

  /** Ends its pause. */
  resume(id: string, o: Call & { why?: string; key?: string } = {}): Promise<Operation> {
    return this.act(id, "resume", o);
  }

  /**
   * Answers what the job of the operation waited for when op was read, as the person saw it. If it asks something else
   * by now, the answer is refused with the code question_differs. input.given says what came of it.
   */
  async answer(op: Operation, input: object, o: Call & { key?: string } = {}): Promise<Operation> {
    const question = op.input?.question;
    const body = { ...(question ? { question } : {}), input };
    return object(await this.call("POST", `${path(op.id)}/input`, { signal: o.signal, key: o.key || newKey(), body }));
  }

  /** Has removed what a job of it left, its own unless one is named. It must have ended or stopped. */
  async cleanup(id: string, o: Call & { jobId?: string; why?: string; key?: string } = {}): Promise<Operation> {
    const body = { ...(o.jobId !== undefined ? { job_id: o.jobId } : {}), ...(o.why ? { why: o.why } : {}) };
    return object(await this.call("POST", `${path(id)}/cleanup`, { signal: o.signal, key: o.key || newKey(), body }));
  }

  /** Records a decision made on this version of the operation. */
  async decide(id: string, version: number, key: string, decision: Decision, call: Call = {}): Promise<Operation> {
    const headers = { "If-Match": `"v${version}"` };
    return object(await this.call("POST", `${path(id)}/decisions`, { ...call, key, headers, body: decision }));
  }

  private async act(id: string, action: string, o: Call & { why?: string; key?: string }): Promise<Operation> {
    const body = o.why ? { why: o.why } : {};
    return object(await this.call("POST", `${path(id)}/${action}`, { signal: o.signal, key: o.key || newKey(), body }));
  }

  // What reads.

  async get(id: string, call: Call = {}): Promise<Operation> {
    return object(await this.call("GET", path(id), call));
  }

  /** Reads an operation once it is done: it has ended, or is stopped until somebody decides. */
  async wait(id: string, call: Call = {}): Promise<Operation> {
    let tag = "";
    let rest = 1;
    for (;;) {
      const begun = Date.now();
      const next = await this.poll(id, tag, "?until=done", call);
      tag = next.tag;
      if (next.op?.done) {
        return next.op;
      }
      if (next.op) {
        rest = Math.min(Math.max(next.op.next_poll_after ?? 0, 1), 10);
      } else if (Date.now() - begun < 1000) {
        await sleep(rest, call.signal); // something between does not let the wait through
      }
    }
  }

  /**
   * Yields the operation as it is and then after each change it sees, until it is done.
   * Several changes between two looks are one. It follows the operation's stream, resumes
   * it where it is cut, and does with waits where streams do not come through or too many
   * are open.
   */
  async *watch(id: string, call: Call = {}): AsyncGenerator<Operation, void, undefined> {
    let version = 0;
    let done = false;
    try {
      for await (const event of this.stream(`${path(id)}/events`, "", call, true)) {
        let op = event.operation;
        if (event.standing && event.standing.version > version) {
          op = await this.get(id, call);
        }
        if (op && op.version > version) {
          ({ version, done } = op);
          yield op;
          if (done) {
            return;
          }
        }
      }
      const op = await this.get(id, call);
      if (op.version > version) {
        yield op;
      }
      return;
    } catch (error) {
      if (!(error instanceof Eaten)) {
        throw error;
      }
    }
    let tag = version ? `"v${version}"` : "";
    while (!done) {
      const begun = Date.now();
      const next = await this.poll(id, tag, "", call);
      tag = next.tag;
      if (next.op && next.op.version > version) {
        ({ version, done } = next.op);
        yield next.op;
      } else if (Date.now() - begun < 1000) {
        await sleep(1, call.signal);
      }
    }
  }

  /**
   * Yields what happens to an operation, each fact once and in order, until it has ended:
   * first how it stands, or behind the event with the id `last` what was missed. "0" gives
   * all from the first fact on.
   */
  events(id: string, last = "", call: Call = {}): AsyncGenerator<Event, void, undefined> {
    return this.stream(`${path(id)}/events`, last, call, false);
  }

  /**
   * Yields what happens to all operations, each fact once and in order, from now on or behind
   * the event with the id `last`. `of` is own, team or all. Where the stream is cut it goes on
   * behind what was told, also if that was nothing yet. It never ends by itself. A Problem with
   * the code cursor_expired says that more has happened since `last` than is told again:
   * operations gives how things stand, and "" a feed from now on.
   */
  feed(filter: { of?: string; provider?: string } = {}, last = "", call: Call = {}): AsyncGenerator<Event, void, undefined> {
    const q = new URLSearchParams();
    for (const [name, value] of Object.entries(filter)) {
      if (value) {
        q.set(name, value);
      }
    }
    return this.stream(q.size > 0 ? `/v1/events?${q}` : "/v1/events", last, call, false, true);
  }

  /** Yields the operations of the list, newest first, page after page. Of tags, each "name:value", all must match. */
  async *operations(
    filter: {
      of?: string; state?: string; provider?: string; session?: string; client_reference?: string; tag?: string[];
      limit?: number; cursor?: string;
    } = {},
    call: Call = {},
  ): AsyncGenerator<Operation, void, undefined> {
    const q = new URLSearchParams();
    for (const [name, value] of Object.entries(filter)) {
      for (const one of Array.isArray(value) ? value : value === undefined ? [] : [value]) {
        q.append(name, String(one));
      }
    }
    for (;;) {
      const page = object<{ items: Operation[]; next_cursor?: string }>(await this.call("GET", `/v1/operations?${q}`, call));
      yield* page.items;
      if (!page.next_cursor) {
        return;
      }
      q.set("cursor", page.next_cursor);
    }
  }

  /** Yields the facts of an operation with what each did, oldest first. */
  async *timeline(id: string, after = 0, call: Call = {}): AsyncGenerator<Entry, void, undefined> {
    for (;;) {
      const page = object<{ entries: Entry[]; next_after?: number }>(await this.call("GET", `${path(id)}/timeline?after=${after}`, call));
      yield* page.entries;
      if ((page.next_after ?? 0) <= after) {
        return;
      }
      after = page.next_after ?? 0;
    }
  }

  /** Reads a result into memory. Before it is there it throws a Problem with the code result_not_ready. */
  async result(id: string, o: Call & { file?: string; unaccepted?: boolean } = {}): Promise<Result> {
    const query = o.file ? `?file=${encodeURIComponent(o.file)}` : o.unaccepted ? "?unaccepted=true" : "";
    const a = await this.call("GET", `${path(id)}/result${query}`, { signal: o.signal });
    const digest = /^sha-256=:([^:]*):/.exec(a.headers.get("Content-Digest") ?? "")?.[1];
    let sha256 = "";
    if (digest && globalThis.crypto?.subtle) { // a page without https has none
      sha256 = hex(Uint8Array.from(atob(digest), (c) => c.charCodeAt(0)));
      if (hex(new Uint8Array(await crypto.subtle.digest("SHA-256", a.body))) !== sha256) {
        throw new Error("the result's bytes are not those of its digest");
      }
    }
    return { data: a.body, mediaType: a.headers.get("Content-Type") ?? "", sha256 };
  }

  async capabilities(call: Call = {}): Promise<{ [name: string]: Json }> {
    return object(await this.call("GET", "/v1/capabilities", call));
  }

  // How.

  private async poll(id: string, tag: string, query: string, call: Call): Promise<{ op?: Operation; tag: string }> {
    const headers: { [name: string]: string } = tag ? { "If-None-Match": tag, Prefer: `wait=${longestWait}` } : {};
    const a = await this.call("GET", path(id) + query, { ...call, headers, extra: longestWait });
    return a.status === 304 ? { tag } : { op: object(a), tag: a.headers.get("ETag") ?? tag };
  }

  private async call(method: string, where: string, r: Request): Promise<Answer> {
    const headers = this.headers(r.headers);
    let body: string | undefined;
    if (r.body !== undefined) {
      headers["Content-Type"] = "application/json";
      body = JSON.stringify(r.body);
    }
    if (r.key) {
      headers["Idempotency-Key"] = `"${r.key.replace(/[\\"]/g, "\\$&")}"`;
      new Headers(headers); // throws for a key that cannot be sent
    }
    for (let tries = 1; ; tries++) {
      r.signal?.throwIfAborted();
      let error: unknown;
      const limit = new Limit(r.signal);
      limit.within(this.o.answer + (r.extra ?? 0));
      try {
        const answer = await fetch(this.base + where, { method, headers, body, signal: limit.signal, redirect: "manual", cache: "no-store" });
        const bytes = new Uint8Array(await answer.arrayBuffer());
        if (answer.ok || answer.status === 304) {
          return { status: answer.status, headers: answer.headers, body: bytes };
        }
        error = problem(answer.status, answer.headers, bytes);
      } catch (cause) {
        r.signal?.throwIfAborted();
        error = new Lost(method, where, r.key ?? "", tries, cause);
      } finally {
        limit.end();
        limit.leave();
      }
      if (!again(error) || tries >= this.o.tries) {
        throw error;
      }
      await this.between(tries, error, r.signal);
    }
  }

  private headers(more: { [name: string]: string } = {}): { [name: string]: string } {
    return this.key ? { ...more, Authorization: `Bearer ${this.key}` } : { ...more };
  }

  /** Waits before the next try, or throws the error if there is to be none. */
  private async between(tries: number, error: unknown, signal?: AbortSignal): Promise<void> {
    let wait = Math.min(this.o.first * 2 ** (tries - 1), this.o.longest) * (0.5 + Math.random() / 2);
    if (error instanceof Problem && error.retryAfter > wait) {
      wait = error.retryAfter;
      if (wait > this.o.patience) {
        throw error;
      }
    }
    await sleep(wait, signal);
  }

  private async *stream(where: string, last: string, call: Call, fallback: boolean, endless = false): AsyncGenerator<Event, void, undefined> {
    const at = { cursor: last, got: 0, silent: false };
    let failures = 0;
    let empty = 0;
    for (;;) {
      at.got = 0;
      at.silent = false;
      let error: unknown;
      try {
        yield* this.one(where, at, call, endless);
        return;
      } catch (cause) {
        call.signal?.throwIfAborted();
        error = cause;
        if (cause instanceof Problem) {
          if (fallback && (cause.code === "too_many_streams" || cause.code === "not_acceptable" || (!cause.code && !cause.retryable))) {
            throw new Eaten();
          }
        } else if (cause instanceof Cut) {
          empty = at.got > 0 ? 0 : empty + 1;
          if (fallback && (empty >= emptyStreams || (at.silent && at.got === 0))) {
            throw new Eaten();
          }
          error = new Lost("GET", where, "", failures + 1, cause);
        }
      }
      failures = at.got > 0 ? 1 : failures + 1;
      if (!again(error) || failures >= this.o.tries) {
        throw error;
      }
      await this.between(failures, error, call.signal);
    }
  }

  /** One stream. What it throws beside Problem, Cut and Eaten is the caller's own. */
  private async *one(
    where: string,
    at: { cursor: string; got: number; silent: boolean },
    call: Call,
    endless: boolean,
  ): AsyncGenerator<Event, void, undefined> {
    const more: { [name: string]: string } = { Accept: "text/event-stream" };
    if (at.cursor) {
      more["Last-Event-ID"] = at.cursor;
    }
    const limit = new Limit(call.signal, () => (at.silent = true));
    try {
      limit.within(firstSilence);
      let answer: Response;
      try {
        answer = await fetch(this.base + where, { headers: this.headers(more), signal: limit.signal, redirect: "manual", cache: "no-store" });
      } catch (cause) {
        if (at.silent) {
          throw new Cut("no answer in time", { cause });
        }
        throw new Lost("GET", where, "", 1, cause);
      }
      if (answer.status === 204 && !endless) {
        return;
      }
      if (!answer.ok || !answer.body) {
        const bytes = await answer.arrayBuffer().catch(() => new ArrayBuffer(0));
        throw problem(answer.status, answer.headers, new Uint8Array(bytes));
      }
      if (!(answer.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) {
        throw new Eaten("the answer to a request for a stream is none");
      }
      const reader = answer.body.getReader();
      const decoder = new TextDecoder();
      let rest = "";
      let name = "";
      let data = "";
      let cursor = at.cursor;
      let placed = false; // an id came since the last event
      for (;;) {
        const part = await reader.read().catch((cause: unknown) => {
          throw new Cut("the stream was cut", { cause });
        });
        if (part.done) {
          throw new Cut("the stream was cut");
        }
        at.got++;
        const lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) {
          const colon = line.indexOf(":");
          const field = colon < 0 ? line : line.slice(0, colon);
          const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "").replace(/\r$/, "");
          if (field === "id") {
            cursor = value;
            placed = true;
          } else if (field === "event") {
            name = value;
          } else if (field === "data") {
            data += data ? `\n${value}` : value;
          } else if (line.trim() === "" && data) {
            const event = read(cursor, name, data);
            name = data = "";
            placed = false;
            if (!event.operation && !behind(cursor, at.cursor)) {
              continue; // told before
            }
            at.cursor = cursor; // what is given is not told again
            limit.end(); // the caller takes its time
            yield event;
            if (event.type === "operation.ended.v1" && !endless) {
              return;
            }
          } else if (line.trim() === "") {
            if (placed && behind(cursor, at.cursor)) {
              at.cursor = cursor; // it says where the stream is, and tells nothing
            }
            name = "";
            placed = false;
          }
        }
        limit.within(laterSilence);
      }
    } finally {
      limit.end();
      limit.abort();
    }
  }
}

/** A signal that follows the caller's, and ends by itself when something takes too long. */
class Limit {
  private readonly own = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly follow = (): void => this.own.abort(this.outer?.reason);

  constructor(
    private readonly outer?: AbortSignal,
    private readonly late?: () => void,
  ) {
    if (outer?.aborted) {
      this.follow();
    }
    outer?.addEventListener("abort", this.follow);
  }

  get signal(): AbortSignal {
    return this.own.signal;
  }

  within(seconds: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.late?.();
      this.own.abort(new Error("no answer in time"));
    }, seconds * 1000);
  }

  end(): void {
    clearTimeout(this.timer);
  }

  /** Or a signal that outlives many calls would keep something of each. */
  leave(): void {
    this.outer?.removeEventListener("abort", this.follow);
  }

  abort(): void {
    this.leave();
    this.own.abort();
  }
}

function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason as Error);
      return;
    }
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

function path(id: string): string {
  return `/v1/operations/${encodeURIComponent(id)}`;
}

/** Whether the id of an event is behind the last one, if there was any. */
function behind(id: string, last: string): boolean {
  return !last || Number(id) > Number(last);
}

function checked(op: Operation): Checked {
  if (!op.validation) {
    throw new Error("the answer does not say that nothing was recorded: read the list, and look what stands between");
  }
  return op as Checked;
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

function object<T>(a: Answer): T {
  return JSON.parse(new TextDecoder().decode(a.body)) as T;
}

function read(id: string, name: string, text: string): Event {
  const { data } = JSON.parse(text) as { data: unknown };
  const type = name.startsWith(prefix) ? name.slice(prefix.length) : name;
  if (/^operation\.(snapshot|reset|ended)\.v1$/.test(type)) {
    return { id, type, operation: data as Operation };
  }
  const fact = data as { entry?: Entry; operation?: Event["standing"] };
  return { id, type, entry: fact.entry, standing: fact.operation };
}

function problem(status: number, headers: Headers, body: Uint8Array): Problem {
  let document: ProblemDocument | undefined;
  if ((headers.get("Content-Type") ?? "").startsWith("application/problem+json")) {
    try {
      document = JSON.parse(new TextDecoder().decode(body)) as ProblemDocument;
    } catch {
      // it is taken for one that is not of the API
    }
  }
  if (!document?.code) {
    const passing = [408, 429, 502, 503, 504].includes(status);
    document = {
      detail: `the answer is not one of the API: HTTP ${status}`,
      retryable: passing,
      retry_with: passing ? "same_key" : "",
      hint: "check the server's address and what stands between",
    };
  }
  const after = headers.get("Retry-After") ?? "";
  const seconds = /^\d+$/.test(after) ? Number(after) : (Date.parse(after) - Date.now()) / 1000;
  return new Problem(status, document, Math.max(0, seconds || 0));
}
