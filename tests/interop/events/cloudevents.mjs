// The CloudEvents package of npm, which is not ours, posts the same intent in all
// three modes: it is one operation, and another intent is another.
import { CloudEvent, HTTP } from 'cloudevents';
import { authorization, check, server } from '../mcp/common.mjs';

const run = `interop-${Date.now()}-${process.pid}`;
const intent = (id) => new CloudEvent({
  id, source: '/interop', type: 'dev.counterfoil.operation.submit.v1', datacontenttype: 'application/json',
  data: { provider: 'example', account: 'plain', params: { n: 1 }, session: run },
});

async function post({ headers, body }) {
  const answer = await fetch(new URL('/v1/events', server), {
    method: 'POST', headers: { ...headers, ...authorization }, body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  return { status: answer.status, replayed: answer.headers.get('idempotent-replayed') === 'true', ...(await answer.json()) };
}

const first = await post(HTTP.binary(intent(`${run}-1`)));
check('binary: recorded', first.status === 202 && first.id?.startsWith('op_'), first);
const again = await post(HTTP.structured(intent(`${run}-1`)));
check('structured: the same intent is the same operation', again.status === 200 && again.replayed && again.id === first.id, again);
const batch = [intent(`${run}-1`), intent(`${run}-2`)].map((event) => JSON.parse(HTTP.structured(event).body));
const both = await post({ headers: { 'content-type': 'application/cloudevents-batch+json' }, body: JSON.stringify(batch) });
check('batch: the first again, the second new', both.items?.length === 2 && both.items[0].operation?.id === first.id && both.items[0].status === 200 &&
  both.items[1].status === 202 && both.items[1].operation?.id !== first.id, both);
const refused = await post(HTTP.binary(new CloudEvent({ id: `${run}-3`, source: '/interop', type: 'com.example.other', data: {} })));
check('another type is refused by a problem', refused.status === 422 && refused.code && refused.hint, refused);

// What is told on the stream reads as CloudEvents, too.
const stream = await fetch(new URL(`/v1/operations/${first.id}/events?after=0`, server), { headers: { ...authorization, Accept: 'text/event-stream' } });
let told = 0;
let text = '';
for await (const part of stream.body.pipeThrough(new TextDecoderStream())) {
  text += part;
}
for (const line of text.split('\n')) {
  if (!line.startsWith('data: ')) continue;
  const event = HTTP.toEvent({ headers: { 'content-type': 'application/cloudevents+json' }, body: line.slice(6) });
  event.validate();
  told++;
}
check('the stream tells CloudEvents until the end', told > 3 && text.includes('operation.ended.v1'), told);
