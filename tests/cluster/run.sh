#!/usr/bin/env bash
# make cluster-test: builds every image here, brings deploy/compose.yaml up, runs the
# standard job against it while nodes and roles are killed, and prints one line of JSON.
# With -short first, for .ci/run: nodes are told to stop and a poller is killed, at a
# lower rate. How long servers take to choose a leader after a kill is up to fixed times
# of theirs, 3 to 9 s, too near to the bound for a machine that nobody knows. Logs of the
# containers are shown where it fails, and kept in the file that CLUSTER_LOGS names.
# Needs a Docker engine; tests/cluster/engine.sh starts one for it.
set -euo pipefail
cd "$(dirname "$0")/../.."

docker=$(command -v /usr/bin/docker || command -v docker)
compose=$(command -v docker-compose)
if [ "${1-}" = -short ]; then
  shift
  set -- -rate 5 -calm 1s -break "stopped nats node,stopped ledger leader,poller" -limit 150s "$@"
  # What go test has compiled serves; paths in the programs do not matter here.
  export TRIMPATH=false
fi

project=counterfoil-test
files=(-p "$project" -f deploy/compose.yaml -f tests/cluster/compose.test.yaml)
down() {
  status=$?
  trap '' INT TERM
  if [ "$status" -ne 0 ]; then
    timeout 20 "$compose" "${files[@]}" ps || true
    timeout 60 "$compose" "${files[@]}" logs --no-color --tail=40 2>/dev/null | cut -c1-400 || true
  fi
  if [ -n "${CLUSTER_LOGS-}" ]; then
    timeout 60 "$compose" "${files[@]}" logs --no-color >"$CLUSTER_LOGS" 2>/dev/null || true
  fi
  timeout 60 "$compose" "${files[@]}" down --volumes --timeout 2 >/dev/null 2>&1 || true
  rm -rf deploy/secrets deploy/contracts
  exit "$status"
}
for dir in deploy/secrets deploy/contracts; do
  [ ! -e $dir ] || { echo "$dir is there: this test makes its own and removes it" >&2; exit 1; }
done
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step() { echo "== cluster: $1 after $((SECONDS)) s" >&2; }

deploy/build.sh
step "programs built"
mkdir -p deploy/secrets deploy/contracts
printf 'credentials: 1\nproviders:\n  example:\n    default: {credential: "file:/run/secrets/provider-token", base_url: "http://provider:8787/example"}\n' > deploy/secrets/credentials
echo token > deploy/secrets/provider-token
deploy/secrets.sh >&2
# The waits of the standard job, and calls short enough for a run of minutes.
sed -e 's/poll_interval: {default: 2s,/poll_interval: {default: 1s,/' -e 's/request_timeout: 30s/request_timeout: 5s/' \
  -e 's/settle: 30s/settle: 5s/' contracts/example.yaml > deploy/contracts/example.yaml

# Each gets what it needs, and not the programs of all others.
for program in nats-server counterfoil ingest projector poller webhooks; do
  tar -C deploy -c Dockerfile build/rootfs build/owned build/bin/healthcheck "build/bin/$program" |
    DOCKER_BUILDKIT=0 "$docker" build --quiet --build-arg "PROGRAM=$program" --tag "counterfoil/$program" - >/dev/null
done
step "images built"
timeout 180 "$compose" "${files[@]}" up -d --no-build >&2
step "containers up"
# In the background, so that a signal is heard while it runs.
deploy/build/bin/drive -docker "$docker" -project "$project" -secrets deploy/secrets "$@" &
drive=$!
trap 'kill "$drive" 2>/dev/null || true; wait "$drive" || true; exit 130' INT
trap 'kill "$drive" 2>/dev/null || true; wait "$drive" || true; exit 143' TERM
wait "$drive"
step "done"
