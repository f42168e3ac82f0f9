// Has the service's descriptions looked at by linters that are not ours.
//
//   npm install --no-package-lock
//   COUNTERFOIL_SERVER=http://127.0.0.1:7766 node lint.mjs
//
// The service runs; no key is needed. It ends with 1 if something is found.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Parser } from '@asyncapi/parser';

const here = dirname(fileURLToPath(import.meta.url));
const base = process.env.COUNTERFOIL_SERVER;
if (!base) throw new Error('COUNTERFOIL_SERVER is not set: start counterfoil serve and name its address');

async function read(path) {
  const answer = await fetch(base + path);
  if (!answer.ok) throw new Error(`${path} is answered ${answer.status}`);
  return answer.text();
}

let failed = false;
const dir = mkdtempSync(join(tmpdir(), 'counterfoil-lint-'));
try {
  const file = join(dir, 'openapi.json');
  writeFileSync(file, await read('/openapi.json'));
  const redocly = join(here, 'node_modules', '.bin', 'redocly');
  const run = spawnSync(redocly, ['lint', file, '--config', join(here, 'redocly.yaml'), '--format', 'stylish'], {
    stdio: 'inherit', env: { ...process.env, REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' },
  });
  if (run.error) throw run.error;
  failed = run.status !== 0;

  const { document, diagnostics } = await new Parser().parse(await read('/asyncapi.json'));
  // 0 is an error and 1 a warning; what is less is advice, such as that there is a
  // newer version of the specification.
  const found = diagnostics.filter((d) => d.severity <= 1);
  for (const d of found) console.error(`asyncapi.json ${d.path.join('/')}: ${d.message}`);
  if (!document || found.length > 0) failed = true;
  else console.log(`asyncapi.json: ${document.channels().length} channels, no errors`);
} finally {
  rmSync(dir, { recursive: true });
}
process.exit(failed ? 1 : 0);
