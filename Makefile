# What the project is worked on with. `make help` lists it.

# Further arguments: make test ARGS='-race -run TestWait'
ARGS ?=
# QUICK=1: make bench and soak within a few minutes
QUICK ?=

# FUZZTIME=2m: how long make fuzz runs each fuzz test (default 30s)

# The packages that make check covers: the library, the command, their tests and the
# benchmarks, without the dependencies of examples/ and cmd/pglimit/test. The pattern "work"
# names the packages of all modules in go.work.
checked = ./... ./cmd/pglimit/... ./integration/... ./pglimittest/... ./bench/...

.DEFAULT_GOAL := help
.PHONY: help test test-citus test-loaded check faults fuzz prove-bounds prove-history test-matrix demo playground bench soak screenshots generate verify

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One go test for all modules runs them in parallel, on one server. scripts/packages lists what
# this machine can test. What that needs compiled is compiled while the server is got. The
# browser's pages take both cores, so they run last and alone. A busy machine needs more than go
# test's ten minutes. A cluster's tests come after all others, which never see one.
test: ## Run all tests on a PostgreSQL found, started or installed (ARGS: go test flags)
	@scripts/setup
	@mkdir -p bin && scripts/packages here >bin/packages
	@go build -o bin/ ./pglimittest/withpg
	@go build $$(go list -deps -test -f '{{if and .GoFiles (not .ForTest) (not .Standard) (ne .Name "main")}}{{.ImportPath}}{{end}}' $$(grep -v /test/browser bin/packages)) & bin/withpg && wait
	bin/withpg -- go test -vet=off -timeout 60m $(ARGS) $$(grep -v /test/browser bin/packages)
	@if grep -q /test/browser bin/packages; then set -x; bin/withpg -- go test -vet=off -timeout 60m $(ARGS) ./cmd/pglimit/test/browser/...; fi
	cd cmd/pglimit/test/ratelimit && GOWORK=off ../../../../bin/withpg -- go test -vet=off $(ARGS) ./...
	cd deploy/test && GOWORK=off ../../bin/withpg -- go test -vet=off $(ARGS) .
	@if [ -n "$$CITUS_BUILD" ] || scripts/setup citus 2>/dev/null; then $(MAKE) test-citus; fi
	@scripts/packages left

# Those of the row citus that take four minutes of two cores together.
clustered = $(addprefix ./integration/,cluster decide faults history reserve search share wait)
# scripts/test-matrix lists the tests that cannot run there; its row citus has more packages.
# PACKAGES=./integration/tx: which
test-citus: ## Run the tests of limits on a Citus cluster of this machine (ARGS: go test flags; PACKAGES)
	@scripts/setup citus
	@go build -o bin/ ./pglimittest/withpg
	PGLIMIT_TEST_BACKEND=citus bin/withpg -- go test -vet=off -timeout 60m $(ARGS) $$(scripts/test-matrix -a citus | head -n 1) $(or $(PACKAGES),$(clustered))

# What needs a server or a browser is left to make test.
check: ## Check formatting and vet, and run the unit tests: no database, under a minute once built
	@files=$$(gofmt -l .); test -z "$$files" || { echo "run gofmt -w on:" $$files; exit 1; }
	go vet $(checked)
	go test $(ARGS) $$(go list $(checked) | scripts/packages)

# PACKAGES=./integration/operations: which (default: all of integration/ and cmd/pglimit/test/)
test-loaded: ## Run tests three times while busy loops and a dd load the machine (ARGS: go test flags; PACKAGES)
	@scripts/setup
	@go build -o bin/ ./pglimittest/withpg
	@mkdir -p bin && scripts/packages here >bin/packages
	@scripts/test-loaded bin/withpg -- go test -vet=off -count=1 -timeout 60m $(ARGS) $(or $(PACKAGES),$$(grep -e /integration/ -e /cmd/pglimit/test/ bin/packages))
	$(if $(PACKAGES),,@GOWORK=off scripts/test-loaded bin/withpg -- go -C cmd/pglimit/test/ratelimit test -vet=off -count=1 -timeout 60m $(ARGS) ./...)

# The test runs in its directory, so that go test prints the table. It needs PostgreSQL's
# programs, not a container: some faults stop the server's processes.
faults: ## Run the load of all verbs while servers, connections and callers fail (ARGS='-run TestFaults/kill')
	@PGLIMIT_TEST_BACKEND=local scripts/setup faults
	@cd integration/faults && for backend in local $$(../../scripts/setup citus && echo citus); do PGLIMIT_TEST_FULL=1 PGLIMIT_TEST_BACKEND=$$backend go test -count=1 -timeout 60m $(ARGS) || exit; done

# Their seeds run under check and test.
fuzz: ## Run every fuzz test for FUZZTIME (default 30s) each: no database (ARGS: a pattern of directory and name)
	@scripts/fuzz $(ARGS)

# HISTORIES of a form of an algorithm, those of statements and SEED can be set.
prove-bounds: ## Search for over-admission: 100,000 histories of each algorithm's forms in memory, 2,000 over statements
	PGLIMIT_SEARCH_HISTORIES=$(or $(HISTORIES),100000) PGLIMIT_SEARCH_SEED=$(or $(SEED),1) go test -count=1 -timeout 60m -v -run AdmitsNoMoreThanItsBound ./limiter
	@scripts/setup
	@go build -o bin/ ./pglimittest/withpg
	PGLIMIT_SEARCH_HISTORIES=$(or $(STATEMENT_HISTORIES),2000) PGLIMIT_SEARCH_SEED=$(or $(SEED),1) bin/withpg -- go test -count=1 -timeout 60m -v ./integration/search

# Porcupine looks for an order of each history. A failure prints the first answer that has
# no place in one, and the seed: make prove-history ARGS='-seed 1'. -forms 'slots balances' draws
# only these. -crashes also kills the server, which must be no one else's.
prove-history: ## Check 100,000 operations of several processes for linearizability (ARGS: flags of the test)
	@scripts/setup
	cd integration && go test ./history -count=1 -v -timeout 1h -run TestAnswersAreThoseOfOneOrder -operations 100000 $(ARGS)

# MATRIX='pg13 role': the rows of make test-matrix (default: all). scripts/test-matrix -l lists them.
test-matrix: ## Test PostgreSQL 13 to 18, poolers, roles, -race: a row takes 15 minutes (MATRIX: some)
	@set -f; scripts/test-matrix $(MATRIX)

demo: ## Show pglimit at work on a throwaway PostgreSQL (ARGS: pglimit demo flags)
	@scripts/setup
	@go build -o bin/ ./cmd/pglimit ./pglimittest/withpg
	@bin/withpg -- bin/pglimit demo --yes $(ARGS)

playground: ## Serve the web page on a throwaway PostgreSQL until Ctrl-C (ARGS: pglimit playground flags)
	@scripts/setup
	@go build -o bin/ ./cmd/pglimit ./pglimittest/withpg
	@bin/withpg -- bin/pglimit playground --yes $(ARGS)

bench: ## Compare with Redis and a bare upsert; measure spends, surges, growth: an hour (ARGS='-only growth,load')
	@scripts/setup bench
	@cd bench && go build -o ../bin/ . && ../bin/bench $(if $(QUICK),-quick) $(ARGS)

soak: ## Run mixed traffic and the janitor for ten minutes, and fail if anything grows (QUICK=1: half a minute)
	@PGLIMIT_TEST_BACKEND=local scripts/setup
	@cd bench && go build -o ../bin/ . && ../bin/bench -soak $(if $(QUICK),-quick)

screenshots: ## Take the pictures of the playground and the dashboard in docs/
	@scripts/setup
	@scripts/setup browser
	@cd cmd/pglimit/test && go run ./browser/screenshots ../../../docs

generate: ## Make queries/*.sql from templates, db/ from those, the SQL functions' migration, zone names
	go run ./internal/zone/generate
	go run ./queries/template
	go run ./queries/functions
	rm -f db/*.go
	CGO_ENABLED=0 GOWORK=off go tool -modfile=tools.mod sqlc generate

verify: ## Check generated code, vet, staticcheck, gofmt and module files
	@scripts/verify
