#!/usr/bin/env bash
# Third-party clients against a running `counterfoil demo`: MCP, CloudEvents, and the
# linters of the descriptions. Needs Node 20 and the npm registry; exits with 125, the
# last line saying why, where they cannot be had.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "node and npm are not installed"
  exit 125
fi
if [ "$(node -p 'Number(process.versions.node.split(".")[0]) >= 20')" != true ]; then
  echo "node $(node --version) is too old: 20 is needed"
  exit 125
fi
if ! timeout 30 npm view cloudevents@10.0.0 version >/dev/null 2>&1; then
  echo "the npm registry does not answer"
  exit 125
fi

work=$(mktemp -d)
demo=
end() {
  if [ -n "$demo" ]; then kill "$demo" 2>/dev/null || true; wait "$demo" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap end EXIT

for part in mcp events openapi; do
  # A lock file names versions and digests, where there is one.
  lock=(install --no-package-lock)
  if [ -f "$part/package-lock.json" ]; then lock=(ci); fi
  (cd "$part" && npm "${lock[@]}" --no-audit --no-fund --loglevel=error)
done

(cd ../.. && go build -o "$work/counterfoil" ./cmd/counterfoil)
"$work/counterfoil" demo --data "$work/data" >"$work/demo" 2>&1 &
demo=$!
for _ in $(seq 300); do
  if grep -q 'export COUNTERFOIL_SERVER=' "$work/demo"; then break; fi
  if ! kill -0 "$demo" 2>/dev/null; then break; fi
  sleep 0.2
done
settings=$(sed -n 's/^ *export \(COUNTERFOIL_SERVER=[^ ]* COUNTERFOIL_KEY=[^ ]*\)$/\1/p' "$work/demo")
if [ -z "$settings" ]; then
  echo "the demo did not say where it is:" >&2
  tail -20 "$work/demo" >&2
  exit 1
fi
export COUNTERFOIL="$work/counterfoil" ${settings?}

failed=0
for script in mcp/sdk.mjs mcp/tasks.mjs events/cloudevents.mjs openapi/lint.mjs; do
  echo "== $script"
  timeout 120 node "$script" || { echo "== $script failed with exit code $?" >&2; failed=1; }
done
exit "$failed"
