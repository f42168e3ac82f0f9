// What the scripts share. Each drives a running `counterfoil demo` through one
// client that is not ours: COUNTERFOIL_SERVER and COUNTERFOIL_KEY name it.

export const server = need("COUNTERFOIL_SERVER");
export const key = need("COUNTERFOIL_KEY");
export const authorization = { Authorization: `Bearer ${key}` };

function need(name) {
  const value = process.env[name];
  if (!value) {
    throw new Error(`${name} is not set: start counterfoil demo and export what it prints`);
  }
  return value;
}

// A key of its own for each run: the service keeps every operation.
const run = `interop-${Date.now()}-${process.pid}`;
export const intent = (name, provider, account) => ({
  idempotency_key: `${run}-${name}`, provider, account, params: { n: 1 }, session: run,
});

export function check(what, ok, saw) {
  if (!ok) {
    throw new Error(`${what}: saw ${JSON.stringify(saw)}`);
  }
  console.log(`ok: ${what}`);
}
