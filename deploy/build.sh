#!/usr/bin/env bash
# Builds the static programs that the images hold, into deploy/build. The NATS server
# is that of the module pinned in go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."
out=deploy/build
rm -rf "$out"
mkdir -p "$out/bin" "$out/rootfs/etc/ssl/certs" "$out/owned/nats" "$out/owned/installation"
# The certificates by which providers are recognised: those of this machine.
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
  if [ -r "$bundle" ]; then cp "$bundle" "$out/rootfs/etc/ssl/certs/ca-certificates.crt"; break; fi
done
[ -s "$out/rootfs/etc/ssl/certs/ca-certificates.crt" ] || { echo "no bundle of certificates found on this machine (package ca-certificates)" >&2; exit 1; }
# Directories alone are not copied with their owner.
touch "$out/owned/nats/.keep" "$out/owned/installation/.keep"
export CGO_ENABLED=0
go build -trimpath="${TRIMPATH:-true}" -ldflags='-s -w' -o "$out/bin/" \
  ./cmd/counterfoil ./cmd/ingest ./cmd/projector ./cmd/poller ./cmd/webhooks ./cmd/healthcheck ./tests/cluster/drive \
  github.com/nats-io/nats-server/v2
