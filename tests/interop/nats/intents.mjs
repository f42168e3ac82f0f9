// The nats package of npm, which is not ours, publishes an intent that the CloudEvents
// package wrote, and reads the verdict as it comes and again later. What is not its own
// it may neither publish nor read.
import { createHash } from 'node:crypto';
import { CloudEvent, HTTP } from 'cloudevents';
import { connect, headers, StringCodec } from 'nats';
import { authorization, check, key, server } from '../mcp/common.mjs';

const address = process.env.COUNTERFOIL_NATS;
if (!address) throw new Error('COUNTERFOIL_NATS is not set: start counterfoil serve with --nats-listen and name its address');
const principal = 'local';
const text = StringCodec();
const run = `interop-${Date.now()}-${process.pid}`;

const nc = await connect({ servers: address, token: key, inboxPrefix: `_INBOX.${principal}`, maxReconnectAttempts: 0 });
const refused = [];
(async () => { for await (const s of nc.status()) if (s.type === 'error') refused.push(s); })();

const verdicts = [];
const told = nc.subscribe(`verdicts.${principal}.*`);
(async () => { for await (const m of told) verdicts.push(m); })();
const token = (event) => createHash('sha256').update(`${event.source}\n${event.id}`).digest('hex').slice(0, 32);
const event = (id, data) => new CloudEvent({
  id, source: '/interop', type: 'dev.counterfoil.operation.submit.v1', datacontenttype: 'application/json', data,
});
const first = event(`${run}-1`, { provider: 'example', params: { n: 1 }, session: run });

async function publish(event, mode) {
  const message = HTTP[mode](event);
  const h = headers();
  for (const [name, value] of Object.entries(message.headers)) h.set(name, String(value));
  const body = typeof message.body === 'string' ? message.body : JSON.stringify(message.body);
  // A request: the server's acknowledgement says that it is stored.
  const stored = await nc.request(`intents.${principal}`, text.encode(body), { headers: h, timeout: 5000 });
  return JSON.parse(text.decode(stored.data));
}

async function verdict(of) {
  for (let i = 0; i < 500; i++) {
    const at = verdicts.findIndex((m) => m.subject === `verdicts.${principal}.${token(of)}`);
    if (at >= 0) return JSON.parse(text.decode(verdicts.splice(at, 1)[0].data));
    await new Promise((r) => setTimeout(r, 20));
  }
  throw new Error(`no verdict on ${of.id} came`);
}

const stored = await publish(first, 'binary');
check('binary: stored before it is acknowledged', stored.stream === 'INTENTS' && stored.seq > 0, stored);
const said = await verdict(first);
check('the verdict names the operation', said.status === 202 && said.operation?.id?.startsWith('op_'), said);
await publish(first, 'structured');
const again = await verdict(first);
check('structured: the same intent is the same operation', again.status === 200 && again.replayed && again.operation.id === said.operation.id, again);
const answer = await fetch(new URL(`/v1/operations/${said.operation.id}`, server), { headers: authorization });
check('the operation is there by HTTP', answer.status === 200, answer.status);

// By the library's JetStream publish, with an id that the server would take for the same
// message: both are stored, and neither is acknowledged as a duplicate.
const js = nc.jetstream({ timeout: 5000 });
const acks = [];
for (const id of [`${run}-3`, `${run}-4`]) {
  const message = HTTP.structured(event(id, { provider: 'example', params: { n: 1 }, session: run }));
  const h = headers();
  h.set('content-type', 'application/cloudevents+json');
  acks.push(await js.publish(`intents.${principal}`, text.encode(message.body), { headers: h, msgID: run, expect: { streamName: 'INTENTS' } }));
}
check('JetStream publish: each is stored', acks.every((a) => a.stream === 'INTENTS' && !a.duplicate) && acks[1].seq > acks[0].seq, acks);
for (const id of [`${run}-3`, `${run}-4`]) {
  const v = await verdict({ id, source: '/interop' });
  check(`the verdict on ${id.slice(-1)} came`, v.status === 202, v);
}
const guess = await js.publish(`intents.${principal}`, text.encode('x'), { expect: { lastSequence: 1 } }).then(() => undefined, (e) => e);
check('an expected sequence is refused, and tells nothing', guess?.api_error?.err_code === 10003, guess);

const bad = event(`${run}-2`, { provider: 'nobody', params: {} });
await publish(bad, 'binary');
const problem = await verdict(bad);
check('a refusal is the same problem', problem.status === 422 && problem.problem?.code === 'unknown_provider', problem);

const later = await nc.request(`$JS.API.DIRECT.GET.VERDICTS.verdicts.${principal}.${token(first)}`, undefined, { timeout: 5000 });
check('a verdict can be read later', JSON.parse(text.decode(later.data)).operation.id === said.operation.id, later.headers);

for (const subject of ['intents.somebody', 'facts.0.01.op_x', 'control.hold', '$JS.API.STREAM.INFO.LEDGER']) {
  const before = refused.length;
  nc.publish(subject, text.encode('x'));
  await nc.flush();
  for (let i = 0; i < 50 && refused.length === before; i++) await new Promise((r) => setTimeout(r, 20));
  check(`${subject} is closed`, refused.length > before, refused);
}
await nc.close();
