# Needs Go; `make test` uses the race detector where there is a C compiler.
# A recipe longer than a line is a script under tools, which can be called alone.

.PHONY: help build run test soak chaos conformance-machines bench fuzz lint generate clean

help:
	@echo 'make run       a whole cluster on this machine; Ctrl-C ends it'
	@echo 'make test      every test, with the race detector where there is a C compiler'
	@echo 'make soak      kill -9 during 1,000 activations (KILLS=1000), damage of every byte on a node, and'
	@echo '               millions of schedules of coordinators that fail (SCHEDULES=5000000), schedules of whole'
	@echo '               coordinators on a store that fails (FLEET_SCHEDULES=1000), kill -9 of the coordinator that'
	@echo '               leads, 100 times on each store (COORDINATOR_KILLS=100), and of a provider of processes'
	@echo '               (PROVIDER_KILLS=500), owners of domains on clocks that go wrong (OWNER_SCHEDULES=20000), and'
	@echo '               machines that join at once from one address (JOINS=10000), and credentials of a store that are'
	@echo '               replaced, and logs that nobody reads, for SURROUNDINGS_TIME=10m'
	@echo 'make chaos     real processes, killed, stopped, cut off and put to sleep at random while people write, and'
	@echo '               a check of what was promised (CHAOS_TIME=10m for each kind of store, CHAOS_SEED=N for one'
	@echo '               schedule, CHAOS_KEEP=DIR to keep the logs)'
	@echo 'make conformance-machines'
	@echo '               the contract of providers, held against one whose machines are containers of podman'
	@echo 'make bench     every benchmark (BENCH=regexp, BENCHTIME=1s)'
	@echo 'make fuzz      every fuzz target for a minute each (FUZZTIME=1m)'
	@echo 'make lint      every check that is not a test'
	@echo 'make generate  Go code from the protos'
	@echo 'make build     bin/fealty'
	@echo 'make clean     remove bin'

build:
	CGO_ENABLED=0 go build -tags grpcnotrace,nethttpomithttp2 -trimpath -o bin/fealty ./cmd/fealty

run: build
	./bin/fealty dev --data .fealty-dev

test:
	@tools/test.sh

KILLS ?= 1000
COORDINATOR_KILLS ?= 100
SCHEDULES ?= 5000000
JOINS ?= 10000
FLEET_SCHEDULES ?= 1000
OWNER_SCHEDULES ?= 20000
PROVIDER_KILLS ?= 500
SURROUNDINGS_TIME ?= 10m
soak:
	@tools/postgres.sh
	@tools/etcd.sh
	FEALTY_TEST_SCHEDULES=$(SCHEDULES) go test -run '^TestSchedules$$' -timeout 2h -v ./internal/replica
	FEALTY_TEST_REGRESS_SCHEDULES=$(SCHEDULES) go test -run '^TestSchedules$$' -timeout 2h -v ./internal/regress
	FEALTY_TEST_FLEET_SCHEDULES=$(FLEET_SCHEDULES) go test -run '^TestFleetSchedules$$' -timeout 2h ./internal/sim
	FEALTY_TEST_OWNER_SCHEDULES=$(OWNER_SCHEDULES) go test -run '^TestOneOwnerWhateverHappens$$' -timeout 2h -v ./internal/ownership
	FEALTY_TEST_KILLS=$(PROVIDER_KILLS) go test -run '^TestKilledAtAnyMoment$$' -timeout 2h -v ./internal/provider/process
	FEALTY_TEST_REPLICA_SCHEDULES=500 go test -run '^TestReplicaSchedules$$' -timeout 2h ./internal/coordinator
	go test -run '^TestRotationLosesNoConfig$$' -timeout 2h ./internal/coordinator/trust -rapid.checks 1000
	FEALTY_TEST_KILLS=$(KILLS) go test -run '^TestKilledActivation$$' -timeout 2h -v ./internal/agent
	FEALTY_TEST_KILLS=$(COORDINATOR_KILLS) go test -run '^TestKilledCoordinators$$' -timeout 2h -v ./cmd/fealty
	FEALTY_TEST_JOINS=$(JOINS) go test -run '^TestJoinsAtOnceFromOneAddress$$' -timeout 2h -v ./cmd/fealty
	CHAOS_TIME=$(SURROUNDINGS_TIME) go test -count=1 -run '^TestSurroundings$$' -timeout 2h -v ./internal/chaos
	FEALTY_TEST_EVERY_BYTE=1 go test -run '^(TestEveryFileDamaged|TestDamaged.*)$$' -timeout 2h -v ./internal/agent

# A seed that is not given is chosen by each run, which prints it.
CHAOS_TIME ?= 10m
chaos:
	@tools/postgres.sh
	@tools/etcd.sh
	CHAOS_TIME=$(CHAOS_TIME) go test -count=1 -parallel 4 -timeout 24h -v ./internal/chaos

conformance-machines:
	@tools/conformance-machines.sh

BENCH ?= .
BENCHTIME ?= 1s
bench:
	go test -run '^$$' -bench '$(BENCH)' -benchtime '$(BENCHTIME)' -benchmem ./...

fuzz:
	@tools/fuzz.sh

lint:
	@tools/lint.sh

generate:
	@tools/generate.sh

clean:
	rm -rf bin
