# memd. `make` lists what there is to make.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE := $(CURDIR)/.cache/bin
GO    ?= go

# Tools that are no part of the module's own dependencies, pinned here.
STATICCHECK_VERSION := v0.8.2
BUF_VERSION         := v1.75.0
GOVULNCHECK_VERSION := v1.9.0

STATICCHECK := $(CACHE)/staticcheck-$(STATICCHECK_VERSION)
BUF         := $(CACHE)/buf-$(BUF_VERSION)

TEST_TIMEOUT ?= 20m
TESTFLAGS    ?=
PKG          ?= ./...
FUZZTIME     ?= 30s
BENCHTIME    ?= 1s
ATTACK       ?= 5

# Where goroutines or processes share something. The crash sweeps share nothing,
# and would take most of the time.
RACE_PACKAGES ?= $(addsuffix /...,$(addprefix ./,$(wildcard internal/pg internal/auth internal/server shred provenance tombstones tenants memory erasure embed)))

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install PostgreSQL and pgvector where they are missing
	@scripts/setup.sh

.PHONY: build
build: ## Build bin/memd
	$(GO) build -o bin/memd ./cmd/memd

.PHONY: demo
demo: setup ## Show, on one machine, that forgetting works
	$(GO) run ./cmd/memd demo

.PHONY: test
test: setup ## Run all tests (PKG=./shred/... TESTFLAGS=-v)
	$(GO) test -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(PKG)

.PHONY: race
race: setup ## Run the tests of the concurrent packages under the race detector
	$(GO) test -race -timeout $(TEST_TIMEOUT) -skip '^TestInvariant5_' $(TESTFLAGS) $(RACE_PACKAGES)

.PHONY: model
model: ## Check the model of the fence, whole and with each part of the design taken away
	@scripts/setup.sh --model
	@model/check.sh

.PHONY: attack
attack: setup ## Race writers against fences for a long time, and break erasures off at every point (ATTACK=5 minutes each)
	MEMD_ATTACK=$(ATTACK) $(GO) test -count=1 -v -run '^TestRace_' -timeout 6h ./tombstones ./sessions ./artifacts
	MEMD_ATTACK=$(ATTACK) $(GO) test -count=1 -race -v -run '^TestRace_' -timeout 6h ./tombstones ./sessions ./artifacts
	MEMD_ATTACK=$(ATTACK) $(GO) test -count=1 -v -run '^TestInvariant5_' -timeout 6h ./erasure
	MEMD_ATTACK=$(ATTACK) $(GO) test -count=1 -v -run '^TestInvariant5_' -timeout 6h ./shred
	MEMD_ATTACK=$(ATTACK) $(GO) test -count=1 -v -timeout 6h ./internal/attack

.PHONY: bench
bench: setup ## Measure memd beside other stores, for ten minutes (CONVERSATIONS=FILE, BENCHFLAGS=--only=tiers)
	$(GO) run ./cmd/memd bench $(if $(CONVERSATIONS),--conversations=$(CONVERSATIONS)) $(BENCHFLAGS)

.PHONY: bench-full
bench-full: setup ## Measure everything, up to 1,000,000 rows: for hours, in 30 GB (CONVERSATIONS=FILE)
	$(GO) run ./cmd/memd bench --tier-rows=1000000 --all-tiers --million --restore-rows=1000000 \
	  $(if $(CONVERSATIONS),--conversations=$(CONVERSATIONS)) $(BENCHFLAGS)

.PHONY: bench-report
bench-report: ## Write docs/benchmarks.md's tables and charts from docs/benchmarks.json
	$(GO) run ./bench/report docs/benchmarks.json docs/benchmarks.md docs/charts

.PHONY: microbench
microbench: setup ## Run the packages' own benchmarks (BENCHTIME=1s)
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -timeout $(TEST_TIMEOUT) $(PKG)

.PHONY: fuzz
fuzz: setup ## Run every fuzz target for a while (FUZZTIME=30s)
	@for package in $$($(GO) list $(PKG)); do \
	  for target in $$($(GO) test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
	  done; \
	done

.PHONY: lint
lint: $(STATICCHECK) ## Check format, go vet, staticcheck and the shell scripts
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	  if [ -n "$$unformatted" ]; then echo "not formatted: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(STATICCHECK) ./...
	@if command -v shellcheck >/dev/null; then shellcheck scripts/*.sh .ci/run; else echo "shellcheck is not installed: shell scripts not checked"; fi

.PHONY: lint-proto
lint-proto: $(BUF) ## Lint the API and check it against the last release (builds buf once: minutes)
	$(BUF) lint
	@tag=$$(git describe --tags --abbrev=0 2>/dev/null || true); \
	  if [ -n "$$tag" ]; then $(BUF) breaking --against ".git#tag=$$tag"; else echo "no release yet: nothing to break"; fi

.PHONY: vuln
vuln: ## Look for known vulnerabilities (asks vuln.go.dev)
	$(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...

.PHONY: generate
generate: plugins ## Generate the Go code of the API
	$(GO) run ./proto/compile $(CACHE) gen

.PHONY: verify
verify: plugins ## Fail when generated code or go.mod is not current
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	  $(GO) run ./proto/compile $(CACHE) "$$out/gen"; \
	  diff -r gen "$$out/gen" >/dev/null || { echo "gen/ is not what proto/ says: run make generate"; diff -rq gen "$$out/gen"; exit 1; }; \
	  $(GO) run ./proto/printvalidate "$$out/third_party"; \
	  diff -r third_party/proto "$$out/third_party" >/dev/null || { echo "third_party/proto is not what go.mod says: run go run ./proto/printvalidate third_party/proto"; exit 1; }
	$(GO) mod tidy -diff
	$(GO) mod verify

.PHONY: clean
clean: ## Remove what was built and memd dev's data (.memd)
	@if [ -d .memd ]; then find .memd -maxdepth 3 -name elsewhere -type l -exec readlink {} \; | while read -r data; do rm -rf "$$data"; done; fi
	rm -rf bin .cache .memd

# Versions of the generators come from go.mod.
.PHONY: plugins
plugins:
	@mkdir -p $(CACHE)
	@$(GO) build -o $(CACHE)/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
	@$(GO) build -o $(CACHE)/protoc-gen-connect-go connectrpc.com/connect/v2/cmd/protoc-gen-connect-go

$(STATICCHECK):
	@mkdir -p $(CACHE)
	GOFLAGS= GOBIN=$(CACHE) $(GO) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)
	@mv $(CACHE)/staticcheck $@

$(BUF):
	@mkdir -p $(CACHE)
	GOFLAGS= GOBIN=$(CACHE) $(GO) install github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION)
	@mv $(CACHE)/buf $@
