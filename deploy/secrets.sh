#!/usr/bin/env bash
# Makes the secrets of compose.yaml in deploy/secrets, once: an nkey for each role and
# what the servers need to know of them, a password for the nodes among themselves, an
# API key, and an empty credentials file to fill in. Files that are there stay.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=deploy/secrets
[ -x deploy/build/bin/counterfoil ] || { echo "run deploy/build.sh first" >&2; exit 1; }
if [ -e "$dir/nats-users" ]; then echo "$dir is made already"; exit 0; fi
mkdir -p "$dir" deploy/contracts
chmod 711 "$dir"
deploy/build/bin/drive secrets "$dir"
deploy/build/bin/counterfoil key add --keys "$dir/keys" --principal local --operator > "$dir/api-key"
[ -e "$dir/credentials" ] || printf 'credentials: 1\nproviders: {}\n' > "$dir/credentials"
[ -e "$dir/provider-token" ] || : > "$dir/provider-token"
chmod 400 "$dir"/*
# The containers' user must be able to read them, and nobody else.
if [ "$(id -u)" -eq 0 ]; then
  chown 65532:65532 "$dir"/*
else
  echo "now, as root: chown 65532:65532 $dir/*" >&2
fi
echo "made $dir; the API key is in $dir/api-key"
