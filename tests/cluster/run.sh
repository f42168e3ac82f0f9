#!/usr/bin/env bash
# make cluster-test: builds every image here, brings deploy/compose.yaml up, runs the
# standard job against it while nodes and roles are killed, and prints one line of JSON.
# Needs a Docker engine; tests/cluster/engine.sh starts one for it.
set -euo pipefail
cd "$(dirname "$0")/../.."

docker=$(command -v /usr/bin/docker || command -v docker)
compose=$(command -v docker-compose)

project=counterfoil-test
files=(-p "$project" -f deploy/compose.yaml -f tests/cluster/compose.test.yaml)
down() {
  status=$?
  if [ "$status" -ne 0 ]; then
    "$compose" "${files[@]}" ps || true
    "$compose" "${files[@]}" logs --no-color --tail=40 2>/dev/null | cut -c1-400 || true
  fi
  "$compose" "${files[@]}" down --volumes --timeout 5 >/dev/null 2>&1 || true
  rm -rf deploy/secrets deploy/contracts
  exit "$status"
}
for dir in deploy/secrets deploy/contracts; do
  [ ! -e $dir ] || { echo "$dir is there: this test makes its own and removes it" >&2; exit 1; }
done
trap down EXIT

deploy/build.sh
mkdir -p deploy/secrets deploy/contracts
printf 'credentials: 1\nproviders:\n  example:\n    default: {credential: "file:/run/secrets/provider-token", base_url: "http://provider:8787/example"}\n' > deploy/secrets/credentials
echo token > deploy/secrets/provider-token
deploy/secrets.sh
# The waits of the standard job, and calls short enough for a run of minutes.
sed -e 's/poll_interval: {default: 2s,/poll_interval: {default: 1s,/' -e 's/request_timeout: 30s/request_timeout: 5s/' \
  -e 's/settle: 30s/settle: 5s/' contracts/example.yaml > deploy/contracts/example.yaml

"$compose" "${files[@]}" build --quiet
"$compose" "${files[@]}" up -d
deploy/build/bin/drive -docker "$docker" -project "$project" -secrets deploy/secrets "$@"
