# onceq. `make demo` and `make test` need Go and a C compiler (SQLite) and nothing else.
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    = 20s
CHAOS       = 3m
SEED        =
CONCURRENCY = 4
SOAK        = 24
PKGS        = ./...

.PHONY: help demo test vet lint race sdk fuzz chaos bench tidy

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## kill a worker in the middle of a run and watch the run go on
	go run ./examples/crashresume

test: vet lint race ## vet, lint and race tests; without Redis, PostgreSQL or MariaDB they say what they skip

vet:
	go vet $(PKGS)
	cd llmcache/internal/sdktest && go vet ./...

lint: ## gofmt and staticcheck
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "gofmt: run gofmt -w on the files above"; exit 1; }
	go run $(STATICCHECK) $(PKGS)
	cd llmcache/internal/sdktest && go run $(STATICCHECK) ./...

race: ## all tests under the race detector
	@rm -f .skipped
	ONCEQ_SKIPPED=$(CURDIR)/.skipped go test -race -timeout 20m $(PKGS)
	@if [ -s .skipped ]; then echo; sort .skipped; echo "*** set ONCEQ_REQUIRE_REAL=1 to make these failures ***"; fi
	cd llmcache/internal/sdktest && go test -race -timeout 10m ./...

# Go's fuzzer sometimes reports its own deadline as a failure ("context deadline
# exceeded", and no failing input): that alone is tried once more.
fuzz: ## each fuzz target for FUZZTIME (20s)
	@set -e; log=$$(mktemp); trap 'rm -f '$$log EXIT; for f in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
		for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' $$f); do \
			echo "fuzz $$t in $$(dirname $$f)"; \
			run() { go test -run '^$$' -fuzz "^$$t$$" -fuzztime $(FUZZTIME) $$(dirname $$f) >$$log 2>&1; }; \
			run || { grep -q '^    context deadline exceeded$$' $$log && ! grep -q 'Failing input' $$log && run; } || { cat $$log; exit 1; }; \
			tail -1 $$log; \
		done; done

chaos: ## CHAOS (3m) of kills, freezes and outages; proves what held; SEED=, CONCURRENCY=; report in chaos-report/
	go run ./internal/chaos -duration $(CHAOS) -concurrency $(CONCURRENCY) $(if $(SEED),-seed $(SEED))
	cd notify && go test -count=1 -timeout 15m -run '^TestSoak$$' -args -soak.events $(SOAK) $(if $(SEED),-soak.seed $(SEED))

bench: ## hot paths, and whole runs beside asynq alone and a naive handler, on a real Redis
	go test -run '^$$' -bench . -benchmem ./idempotent ./checkpoint ./llmcache ./internal/bench

tidy: ## go mod tidy, in both modules
	go mod tidy
	cd llmcache/internal/sdktest && go mod tidy
