#!/usr/bin/env bash
# Third-party clients against a running `counterfoil demo`: MCP, CloudEvents, and the
# linters of the descriptions; and NATS against `counterfoil serve`. Needs Node 20 and the npm registry; exits with 125, the
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
running=()
end() {
  for one in "${running[@]}"; do kill "$one" 2>/dev/null || true; wait "$one" 2>/dev/null || true; done
  rm -rf "$work"
}
trap end EXIT

for part in mcp events nats openapi; do
  # A lock file names versions and digests, where there is one.
  lock=(install --no-package-lock)
  if [ -f "$part/package-lock.json" ]; then lock=(ci); fi
  (cd "$part" && npm "${lock[@]}" --no-audit --no-fund --loglevel=error)
done

(cd ../.. && go build -o "$work/counterfoil" ./cmd/counterfoil)
"$work/counterfoil" demo --data "$work/data" >"$work/demo" 2>&1 &
running+=($!)
# said waits until a process has said something, or is gone.
said() {
  for _ in $(seq 300); do
    if grep -q "$2" "$3" || ! kill -0 "$1" 2>/dev/null; then break; fi
    sleep 0.2
  done
}
said "${running[0]}" 'export COUNTERFOIL_SERVER=' "$work/demo"
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

"$work/counterfoil" serve --data "$work/served" --listen 127.0.0.1:0 --admin-listen "" --nats-listen 127.0.0.1:0 >"$work/serve" 2>&1 &
running+=($!)
said "${running[1]}" '^ready' "$work/serve"
COUNTERFOIL_KEY=$(grep -o 'cf_[A-Za-z0-9_.-]*' "$work/serve" | head -1)
COUNTERFOIL_SERVER=http://$(sed -n 's/^ready.*\(127\.0\.0\.1:[0-9]*\).*/\1/p' "$work/serve" | head -1)
COUNTERFOIL_NATS=$(grep -i nats "$work/serve" | grep -o '127\.0\.0\.1:[0-9]*' | head -1)
export COUNTERFOIL_NATS
echo "== nats/intents.mjs"
timeout 120 node nats/intents.mjs || { echo "== nats/intents.mjs failed with exit code $?" >&2; cat "$work/serve" >&2; failed=1; }
exit "$failed"
