#!/usr/bin/env bash
# Runs a command with a Docker engine of its own, which it stops at the end by its own
# pid. As root. Exit code 125: no engine could be started.
set -euo pipefail
dir=$(mktemp -d)
export DOCKER_HOST=unix://$dir/sock
dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" -H "$DOCKER_HOST" >"$dir/log" 2>&1 &
pid=$!
stop() {
  kill "$pid" 2>/dev/null && wait "$pid" || true
  rm -rf "$dir"
}
trap stop EXIT
for _ in $(seq 150); do
  docker version >/dev/null 2>&1 && break
  kill -0 "$pid" 2>/dev/null || break
  sleep 0.2
done
docker version >/dev/null 2>&1 || { tail -3 "$dir/log" >&2; exit 125; }
"$@"
