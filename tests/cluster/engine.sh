#!/usr/bin/env bash
# Runs a command with a Docker engine of its own, which it stops at the end by its own
# pid, whatever became of the command. As root. Exit code 125: there is no engine here
# that can run a container; why is the last line of standard error.
set -euo pipefail
dir=$(mktemp -d)
export DOCKER_HOST=unix://$dir/sock
# In a session of its own, so that what interrupts the command leaves it time to take
# its containers down; and ended by the kernel if this script is killed.
setsid setpriv --pdeathsig TERM \
  dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" -H "$DOCKER_HOST" >"$dir/log" 2>&1 &
pid=$!
stop() {
  status=$?
  trap '' INT TERM
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 150); do # 30 s
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.2
  done
  kill -KILL "$pid" 2>/dev/null || true
  while read -r _ mounted _; do
    case $mounted in "$dir"/*) umount -l "$mounted" 2>/dev/null || true ;; esac
  done </proc/mounts
  rm -rf "$dir" 2>/dev/null || true
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for _ in $(seq 150); do
  docker version >/dev/null 2>&1 && break
  kill -0 "$pid" 2>/dev/null || break
  sleep 0.2
done
if ! docker version >/dev/null 2>&1; then
  echo "dockerd does not start: $(grep -v level=info "$dir/log" | tail -1 | cut -c1-300)" >&2
  exit 125
fi

# An engine may start where it can run nothing: one command of this machine, in a
# network, says whether it can here.
probe() {
  tar -cT /dev/null | docker import - probe >/dev/null && docker network create probe >/dev/null || return
  shares=()
  for share in /bin /lib /lib64 /usr; do
    [ ! -d $share ] || shares+=(-v "$share:$share:ro")
  done
  timeout 60 docker run --rm --network probe "${shares[@]}" probe /bin/true
}
if ! failed=$(probe 2>&1); then
  echo "the Docker engine cannot run a container: $(tail -1 <<<"$failed" | cut -c1-300)" >&2
  exit 125
fi
docker network rm probe >/dev/null

# In the background, so that a signal is heard while it runs.
"$@" &
command=$!
trap 'kill -INT "$command" 2>/dev/null || true; wait "$command" || true; exit 130' INT
trap 'kill -TERM "$command" 2>/dev/null || true; wait "$command" || true; exit 143' TERM
wait "$command"
