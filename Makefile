# What the project is worked on with. `make help` lists it.

# Further arguments: make test ARGS='-race -run TestWait'
ARGS ?=
# QUICK=1: make bench, growth, bench-held and bench-spend within a minute each
QUICK ?=

# Directories of modules of their own, which ./... leaves out.
nested = $$(find . -mindepth 2 -name go.mod | xargs -n 1 dirname)

.DEFAULT_GOAL := help
.PHONY: help check test demo playground bench growth bench-held bench-spend screenshots generate verify

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# browser/ tests a command that it builds, of which go test knows nothing: a result
# of before would say nothing of it.
# A machine that others use takes longer than the ten minutes that go test has.
test: ## Run all tests on a PostgreSQL found, started or installed (ARGS: go test flags)
	@scripts/setup
	@scripts/setup browser
	@go run ./internal/withpg
	@scripts/setup server || echo "no PostgreSQL server is installed here: internal/localpg and --embedded, which start one, are not tested"
	go test -timeout 20m $(ARGS) $$(scripts/setup server || echo '-skip=^TestEmbedded') $$(go list ./... | if scripts/setup server; then cat; else grep -v /internal/localpg; fi)
	@for dir in $(nested); do \
		case $$dir in ./browser) fresh=-count=1 ;; *) fresh= ;; esac; \
		echo "cd $$dir && go test $$fresh $(ARGS) ./..."; (cd $$dir && go test $$fresh $(ARGS) ./...) || exit; \
	done

# What needs a server or a browser is left to make test.
check: ## Check formatting and vet, and run the unit tests: no database, under a minute once built
	@files=$$(gofmt -l .); test -z "$$files" || { echo "run gofmt -w on:" $$files; exit 1; }
	go vet ./...
	go test $(ARGS) $$(go list ./... | grep -v -e /integration -e /internal/localpg -e /internal/throwaway)

demo: ## Show pglimit at work on a throwaway PostgreSQL (ARGS: pglimit demo flags)
	@scripts/setup
	@go build -o bin/ ./cmd/pglimit ./internal/withpg
	@bin/withpg -- bin/pglimit demo $(ARGS)

playground: ## Serve the web page on a throwaway PostgreSQL until Ctrl-C (ARGS: pglimit playground flags)
	@scripts/setup
	@go build -o bin/ ./cmd/pglimit ./internal/withpg
	@bin/withpg -- bin/pglimit playground $(ARGS)

bench: ## Set pglimit beside a bare upsert, Redis and others; QUICK=1 for a quick look (ARGS: flags of bench/)
	@scripts/setup bench
	@cd bench && go build -o ../bin/ . && ../bin/bench $(if $(QUICK),-quick) $(ARGS)

growth: ## Measure large tables, an attacker and Zipf traffic (QUICK=1: under a minute; ARGS: its flags)
	@PGLIMIT_TEST_BACKEND=local scripts/setup
	@cd bench && go run ./growth $(if $(QUICK),-quick) $(ARGS)

bench-held: ## Measure the other keys while a transaction holds a row (QUICK=1: half a minute; ARGS: its flags)
	@PGLIMIT_TEST_BACKEND=local scripts/setup
	@cd bench && go run ./held $(if $(QUICK),-quick) $(ARGS)

bench-spend: ## Measure a spend in a transaction, and two limits at once (QUICK=1: under a minute; ARGS: its flags)
	@PGLIMIT_TEST_BACKEND=local scripts/setup
	@cd bench && go run ./spend $(if $(QUICK),-quick) $(ARGS)

screenshots: ## Take the pictures of the playground in docs/
	@scripts/setup
	@scripts/setup browser
	@cd browser && go run ./screenshots ../docs

generate: ## Make queries/*.sql from their templates; from those db/, and the SQL functions' migration
	go run ./queries/template
	go run ./queries/functions
	rm -f db/*.go
	CGO_ENABLED=0 go tool -modfile=tools.mod sqlc generate

verify: ## Check generated code, vet, staticcheck, gofmt and module files
	@scripts/verify
