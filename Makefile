# `make check` is what CI runs after `go test ./...`; `make help` lists the rest.

GO   ?= go
TOOL  = $(GO) tool -modfile=tools/go.mod
# In a module of its own: it brings hundreds of requirements, and its first
# build takes minutes.
LINT  = $(GO) tool -modfile=tools/lint/go.mod golangci-lint

# Time for each fuzz target, and runs of the long simulation on the memory
# double and on the embedded server.
FUZZTIME    ?= 30s
MEMORY_RUNS ?= 100000
SERVER_RUNS ?= 5000
BENCH       ?= .
OPEN        ?= 1000 10000 100000

# Our Go files: not those of the tools' modules, nor data that looks like Go.
FIND = find . \( -name testdata -o -name '.?*' -o -name '_*' -o -path ./tools \) -prune -o -name '*.go' -print

.DEFAULT_GOAL := help
.PHONY: help check fmt-check fmt vet staticcheck lint arch race race-all mod test clients fuzz simulate mutants interop cluster-test demo drill bench growth deadcode

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

# vet and staticcheck alone are not here: lint runs the analyzers of both, and
# each reads all dependencies anew.
check: fmt-check lint arch mod race ## everything CI checks besides the tests themselves

fmt-check: ## the difference to gofumpt's form, if any
	@diff=$$($(TOOL) gofumpt -d .) && if [ -n "$$diff" ]; then printf '%s\n' "$$diff"; exit 1; fi

fmt: ## rewrite into the form fmt-check and lint want
	$(LINT) fmt

vet: ## go vet alone, for those without the linter
	$(GO) vet ./...

staticcheck: ## staticcheck alone, its own default checks
	$(TOOL) staticcheck ./...

lint: ## golangci-lint; reasons for each linter in .golangci.yml
	$(LINT) config verify
	$(LINT) run ./...

arch: ## levels, purity and the other laws of tests/architecture
	$(GO) test -count=1 ./tests/architecture

# Packages that start goroutines or guard something against them, in their code
# or in their tests. Computed, so that a new one cannot be forgotten.
# The field cases, the crash tests, the canaries, the races over INDEX, the cluster, the fleet and the commands' scripts take
# minutes under the detector and run the same roles as tests/harness and tests/simulation: they are in
# race-all alone.
race: SLOW = -e tests/cases -e tests/crash -e tests/canary -e tests/index -e tests/cluster -e tests/fleet -e tests/growth -e tests/throughput -e tests/clients -e cmd/counterfoil
race: ## the race detector on every package with goroutines but the slow ones, in short form
race-all: SLOW = -e nothing-is-left-out
race-all: ## the race detector on every package with goroutines, in short form
race race-all:
	@packages=$$($(FIND) | xargs grep -lE '^[[:space:]]*go (func|[A-Za-z_])|\.Go\(|"sync(/atomic)?"' | xargs -r -n1 dirname | sort -u | grep -v $(SLOW)); \
	test -n "$$packages" || { echo "no package with goroutines found" >&2; exit 1; }; \
	set -x; CGO_ENABLED=1 $(GO) test -race -short -shuffle=on $$packages

mod: ## go.mod files tidy, downloaded modules unchanged
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	$(GO) -C tools/lint mod tidy -diff
	$(GO) mod verify

test: ## all tests, as the README says
	$(GO) test ./...

# Those that CLIENTS lists must run: python takes Python 3.10, node takes Node.js 20, and
# the npm registry for tsc. Where that does not answer a line says so.
CLIENTS ?= python,node
clients: ## the Python and the TypeScript client against serve, every second answer lost
	COUNTERFOIL_CLIENTS=$(CLIENTS) $(GO) test -count=1 -v -timeout=5m ./tests/clients

fuzz: ## every fuzz target for FUZZTIME each
	@targets=$$($(FIND) | grep '_test\.go$$' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+'); \
	test -n "$$targets" || { echo "no fuzz target found" >&2; exit 1; }; \
	printf '%s\n' "$$targets" | while IFS=: read -r file func; do \
		echo "== $$(dirname "$$file") $${func#func }"; \
		$(GO) test -run='^$$' -fuzz="^$${func#func }\$$" -fuzztime=$(FUZZTIME) "$$(dirname "$$file")" </dev/null || exit 1; \
	done

simulate: ## the long seeded simulation: MEMORY_RUNS and SERVER_RUNS
	$(GO) test -count=1 -v -timeout=0 ./tests/simulation -args -memory-runs=$(MEMORY_RUNS) -server-runs=$(SERVER_RUNS)

mutants: ## every protection taken out once: the simulation must notice each
	$(GO) test -count=1 -v -timeout=0 ./tests/mutants -args -all

interop: ## third-party clients and linters from npm, against a running demo
	tests/interop/run.sh

cluster-test: ## three nodes and every role twice as containers, and what kill -9 does to them
	tests/cluster/run.sh

demo: ## the demo, up until interrupted
	$(GO) run ./cmd/counterfoil demo

drill: ## every failure drill on every built-in contract; the tests play some
	$(GO) run ./cmd/counterfoil drill

bench: ## benchmarks ten times, summed up by benchstat
	@packages=$$($(FIND) | grep '_test\.go$$' | xargs grep -lE '^func Benchmark' | xargs -r -n1 dirname | sort -u); \
	test -n "$$packages" || { echo "no benchmark found" >&2; exit 1; }; \
	out=$$(mktemp) && $(GO) test -run='^$$' -bench='$(BENCH)' -benchmem -count=10 $$packages | tee "$$out" && $(TOOL) benchstat "$$out"; \
	status=$$?; rm -f "$$out"; exit $$status

growth: ## start, memory and latencies beside OPEN waiting operations: a table, and the plot in docs
	@for n in $(OPEN); do $(GO) run ./cmd/counterfoil bench --open $$n --ops 500 --rate 50 --sync interval --output json || exit 1; done \
	| $(GO) run ./tests/growth -svg docs/growth.svg

deadcode: ## functions that neither a command nor a test reaches
	@dead=$$($(TOOL) deadcode -test ./...) && if [ -n "$$dead" ]; then printf '%s\n' "$$dead"; exit 1; fi
