# Needs Go; tests use the race detector where there is a C compiler.
# A recipe longer than a line is a script under tools, which can be called alone.

.PHONY: help build fealty run test nightly chaos conformance-machines bench bench-compare fuzz lint generate release clean

help:
	@echo 'make run       a whole cluster on this machine; Ctrl-C ends it'
	@echo 'make test      what every change has to pass: the same tests with the same seed each time, in minutes'
	@echo 'make nightly   every test there is, for hours: each store, processes that are killed, random courses from a'
	@echo '               new seed, the whole module under the race detector, and every fuzz target (IN=package,'
	@echo '               TEST=name, SEED=N for one of them; what fails prints such a line)'
	@echo 'make chaos     real processes, killed, stopped, cut off and put to sleep at random while people write, and'
	@echo '               a check of what was promised (CHAOS_TIME=10m for each kind of store, SEED=N for one'
	@echo '               schedule, CHAOS_KEEP=DIR to keep the logs)'
	@echo 'make conformance-machines'
	@echo '               the contract of providers, held against one whose machines are containers of podman'
	@echo 'make bench     every benchmark, against the last landing that was measured here (BENCH=regexp, IN=package,'
	@echo '               BENCHTIME=1s, BENCHCOUNT=6, AGAINST=commit to measure that now, in turns)'
	@echo 'make bench-compare'
	@echo '               Fealty beside peers, in turns in one run: writes the table and picture in docs/reference and the'
	@echo '               numbers of the README (COMPARE="-rounds 20 -streams 1000"; with -only NAME,… it prints a part)'
	@echo 'make fuzz      every fuzz target for a minute each (IN=package, FUZZ=regexp, FUZZTIME=1m, KEEP=1 to keep inputs'
	@echo '               that reach new code)'
	@echo 'make lint      every check that is not a test'
	@echo 'make generate  Go code from the protos'
	@echo 'make build     bin/fealty, and bin/fealty-store for embedded stores'
	@echo 'make release   what people install, in dist, from a clean checkout (VERSION=v0.4.1, MACHINES="linux/amd64" for some alone)'
	@echo 'make clean     remove bin and dist'

build: fealty
	@tools/store.sh

fealty:
	CGO_ENABLED=0 go build -tags grpcnotrace,nethttpomithttp2 -trimpath -ldflags='-s -w' -o bin/fealty ./cmd/fealty

run: fealty
	./bin/fealty dev --data .fealty-dev

test:
	@tools/test.sh

nightly:
	@FEALTY_LANE=nightly tools/test.sh

# A seed that is not given is chosen by each run, which prints it.
CHAOS_TIME ?= 10m
chaos:
	@tools/postgres.sh
	@tools/etcd.sh
	FEALTY_LANE=nightly FEALTY_SEED=$(SEED) CHAOS_TIME=$(CHAOS_TIME) go test -count=1 -parallel 4 -timeout 24h -v ./test/chaos

conformance-machines:
	@tools/conformance-machines.sh

bench:
	@tools/bench.sh

bench-compare:
	@tools/bench-compare.sh

fuzz:
	@tools/fuzz.sh

lint:
	@tools/lint.sh

generate:
	@tools/generate.sh

release:
	@MACHINES="$(MACHINES)" tools/release.sh "$(VERSION)"

clean:
	rm -rf bin dist
