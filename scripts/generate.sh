#!/usr/bin/env bash
# Generates gen/ from proto/. Needs Go and a Go module proxy, nothing else.
#
# The tools are built from source into .cache/bin: buf at the version below (a
# few minutes, once), the two plugins at the versions that go.mod pins, because
# generated code and its runtime belong together.
#
#   scripts/generate.sh          generate
#   scripts/generate.sh --tools  only build the tools
set -euo pipefail

readonly buf_version=v1.75.0
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly bin=$PWD/.cache/bin
mkdir -p "$bin"

# Building outside of the module keeps buf's own dependencies out of go.mod.
if [ "$("$bin/buf" --version 2>/dev/null || true)" != "${buf_version#v}" ]; then
  echo "generate: building buf $buf_version, which takes a few minutes"
  (cd / && GOFLAGS=-mod=mod GOBIN=$bin nice go install "github.com/bufbuild/buf/cmd/buf@$buf_version")
fi
go build -o "$bin/protoc-gen-go" google.golang.org/protobuf/cmd/protoc-gen-go
go build -o "$bin/protoc-gen-connect-go" connectrpc.com/connect/v2/cmd/protoc-gen-connect-go
if [ "${1:-}" = --tools ]; then exit 0; fi

go run ./proto/printvalidate third_party/proto
"$bin/buf" format -w proto
"$bin/buf" generate
