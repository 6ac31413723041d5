# make help lists what there is. Everything runs on Debian as root; tools/ensure installs what is missing.

GO       ?= go
BIN      := bin/fastrelay-gen
# Specs whose packages are kept here.
SPECS    := $(addsuffix /spec.cue,examples/turn examples/sfu examples/gate examples/paths examples/tunnel examples/quic examples/moq examples/quicproxy examples/congestion bench/fanout/rewrite bench/ipvs/balance)
# And one whose package isn't beside it, since other modules import what stands on it.
SEGMENTS := examples/segments/spec.cue -o runtime/segments/segmentsrelay
TIME     ?= 60s
BYTES    ?= 20s
N        ?= 500

# What depends on time and is no test's business: the packages whose BenchmarkRatios measures it.
RATIOS   := ./internal/test/testlink ./internal/test/control ./examples/congestion

# All modules of the workspace (go.work).
ALL      := work
# And those that stand outside of it, since the linters and tests of the workspace needn't know what they require.
OUTSIDE  := examples/quicfork examples/quic examples/moq tools/release

# What works on macOS and Windows as well: the compiler.
PORTABLE = ./cmd/... ./gen/... ./sim/... ./spec/... ./templates/... ./runtime/abi $(addprefix ./runtime/tool/,bpfload forwarding literal skbfacts) $$($(GO) list ./internal/... | grep -vE '/internal/test(/|$$$$)')

# Three packages at a time: many tests wait for the kernel's clocks. A test that waits in vain ends by itself.
TESTFLAGS ?= -p 3 -timeout 30m

# Objects that tests have compiled, by what they are made of: each is compiled once for all packages (internal/clang).
OBJECTS  := $(CURDIR)/.cache/objects

.PHONY: help build generate golden check portable test test-all test-long faults test-kernels fresh bench results curves experiment demo fuzz fuzz-specs image release test-release test-package tools quic test-quic test-moq quic-upstream quic-hooks tidy clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

tools:
	@tools/ensure build

build: tools ## the command line, in bin/
	@$(GO) build -o $(BIN) ./cmd/fastrelay-gen

generate: build ## the packages of the examples and the bench, docs/language.md, messages.md, the tables of internals.md and pictures, anew
	@for s in $(SPECS) "$(SEGMENTS)"; do $(BIN) build -q $$s || exit 1; done
	@FASTRELAY_UPDATE=1 $(GO) test -count=1 -run '^Test(Language|ABI|Packages|Pictures|Results)' ./docs ./bench/results >/dev/null

golden: build ## the golden files, anew; look at what changed before you commit it
	@FASTRELAY_UPDATE=1 $(GO) test -count=1 ./golden/...

check: build quic ## formatting, vet (every module, also for macOS and Windows), linters, the exported API, generated files that are up to date
	@unformatted=$$(gofmt -l $$(find . -name '*.go' -not -path './.*')); if [ -n "$$unformatted" ]; then echo "not formatted: $$unformatted"; exit 1; fi
	@$(GO) vet $(ALL)
	@for m in $(OUTSIDE); do (cd $$m && $(GO) vet $$($(GO) list ./... | grep -v /quic-go)) || exit 1; done
	@for system in darwin windows; do GOOS=$$system $(GO) vet $(PORTABLE) || exit 1; done
	@tools/lint
	@unformatted=$$($(BIN) fmt -l $(SPECS) $(firstword $(SEGMENTS)) golden/*/spec.cue); if [ -n "$$unformatted" ]; then echo "not formatted: $$unformatted"; exit 1; fi
	@for s in $(SPECS) "$(SEGMENTS)"; do $(BIN) build -q --check $$s || exit 1; done
	@$(GO) test -count=1 ./api

portable: ## the compiler and its tests, built for macOS and Windows
	@for system in darwin windows; do \
		GOOS=$$system $(GO) build $(PORTABLE) && GOOS=$$system $(GO) test -c -o /dev/null $(PORTABLE) || exit 1; done

test: ## every part, with the kernel, in 8 minutes on two processors; the same packets each time
	@tools/ensure build test root
	@find $(OBJECTS) -name '*.o' -mtime +7 -delete 2>/dev/null || true
	@FASTRELAY_OBJECTS=$(OBJECTS) $(GO) test -short -json $(TESTFLAGS) $(ALL) | $(GO) run ./tools/testreport

test-all: check portable ## everything: random packets and specs from a new SEED, planted faults, browsers, QUIC, kernels; hours. What fails doesn't keep the rest from running
	@$(MAKE) --no-print-directory -k test-long test-release test-package test-quic quic-upstream quic-hooks test-moq test-kernels

test-long: ## the tests of make test at their full length, random packets and specs from a new SEED; an hour
	@tools/ensure build test all quic root
	@export FASTRELAY_TEST_SEED=$(or $(SEED),$$(date +%s)); echo "FASTRELAY_TEST_SEED=$$FASTRELAY_TEST_SEED"; \
		FASTRELAY_OBJECTS=$(OBJECTS) $(GO) test -json $(TESTFLAGS) -timeout 2h $(ALL) | $(GO) run ./tools/testreport

faults: ## faults that are planted in the helpers, back ends, plans and the model: all have to be found
	@tools/ensure build test root
	@FASTRELAY_OBJECTS=$(OBJECTS) $(GO) test -json -count=1 -p 2 -timeout 60m -run 'Planted|TestPlansThatTakeTooMuch|TestCongestionFaults|TestIsolationFinds' \
		./internal/test/fuzz ./gen/bpf ./gen/lua | $(GO) run ./tools/testreport

test-kernels: build ## every relay on Debian's kernels from 5.10 on, and on arm64, in virtual machines; KERNELS=bullseye,arm64 for some
	@tools/ensure build kernels root
	@$(GO) run ./internal/test/testkernel/testkernels $(if $(KERNELS),-kernels $(KERNELS))

fresh: ## the commands of the README on a bare Debian; RUN='make test' for another one
	@tools/fresh $(if $(RUN),'$(RUN)')

bench: build ## the numbers of the README, as ratios measured in one run; ONLY=kernel, xdp, veth, wire (PORTS=eth1,eth2: cards), path, fanout, segments, webrtc, quicproxy, tunnel, ipvs, compile, ratios or quic for a part
	@tools/ensure test bench root $(if $(filter-out quic,$(ONLY)),,quic)
	@$(if $(filter quic ratios webrtc,$(ONLY)),:,$(GO) run ./bench $(if $(ONLY),-only $(ONLY)) $(if $(PORTS),-ports $(PORTS)))
	@$(if $(filter-out webrtc,$(ONLY)),:,$(GO) run ./bench/webrtc -packets 2000 -rate 2000)
	@$(if $(filter-out ratios,$(ONLY)),:,$(GO) test -run '^$$' -bench '^BenchmarkRatios$$' -benchtime 3x $(RATIOS))
	@$(if $(filter-out quic,$(ONLY)),:,(cd examples/quicfork && $(GO) run ./cmd/quicfork quic-go) && cd examples/quic && $(GO) run ./bench && $(GO) test -run '^$$' -bench '^BenchmarkRatios$$' -benchtime 1x ./server)

results: build ## what docs/results.md and the README's tables are made of, measured anew in half an hour, and the pages
	@tools/ensure test bench root
	@$(GO) run ./bench -only kernel,xdp,veth,wire,path,fanout,segments,tunnel,ipvs -rounds 2 -receivers 64 -json bench/results.json
	@FASTRELAY_UPDATE=1 $(GO) test -count=1 -run '^TestResults$$' ./bench/results >/dev/null

curves: build quic ## one to many and QUIC alone, and their curves in docs/fanout.png and docs/quic.png
	@tools/ensure test root quic
	@$(GO) run ./bench -only fanout -receivers 1,8,64 -plot docs/fanout.png
	@cd examples/quic && $(GO) run ./bench -objects 60 -rate 2000,8000,20000 -variants 'user space,kernel,kernel thinned,stock,quinn' -plot ../../docs/quic.png

experiment: build ## what a paper measured, repeated: NAME=paths; RUNS=8, FLAGS='-parallel 2' for more (docs/experiments.md)
	@tools/ensure test experiment root
	@$(GO) run ./experiment $(if $(RUNS),-runs $(RUNS)) $(FLAGS) $(NAME)

demo: build ## the same traffic through user space, and through the kernel
	@tools/ensure root
	@$(GO) run ./examples/turn/demo

fuzz: build ## random packets through the model and the kernel for TIME=60s, then random bytes for BYTES=20s
	@tools/ensure root
	@$(GO) test -count=1 -v -timeout 0 -run '^TestKernelAgrees$$' ./internal/test/fuzz -args -time $(TIME)
	@$(GO) test -timeout 0 -run '^$$' -fuzz '^FuzzBytes$$' -fuzztime $(BYTES) ./internal/test/fuzz

fuzz-specs: build ## N=500 random specs from SEED=1 on, compiled and compared
	@tools/ensure root
	@$(GO) test -count=1 -v -timeout 0 -run '^TestSpecs$$' ./internal/test/specgen -args -specs $(N) -seed $(or $(SEED),1)

quic: ## the fork of quic-go, fetched and patched into examples/quicfork/quic-go (examples/quicfork/README.md)
	@cd examples/quicfork && $(GO) run ./cmd/quicfork quic-go

test-quic: quic ## the fork's hooks and the examples on it: linters, and tests with the race detector
	@tools/ensure build test all quic root
	@examples/quic/endpoints/build
	@examples/quic/bench/quinn/build >/dev/null
	@for m in examples/quicfork examples/quic; do tools/lint $$m && (cd $$m && $(GO) vet ./... && $(GO) test -race -skip '^TestCredits$$' $(TESTFLAGS) $$($(GO) list ./... | grep -v /quic-go)) || exit 1; done
	@cd examples/quic && $(GO) test -run '^TestCredits$$' ./server # a model of one goroutine, 20 times slower with the race detector
	@cd examples/quic && GOMAXPROCS=1 $(GO) test -run '^Test(Busy|Stock|Rebinding|Killed)$$' ./server # where the socket's reader has to let others run

test-moq: quic ## examples/moq: linters, and tests with the race detector, also with other implementations (Python 3.12 or newer, cargo, npm, Chromium)
	@tools/ensure test experiment quic root
	@for p in '' player moq-relay; do examples/moq/endpoints/build $$p || exit 1; done
	@examples/moq/endpoints/vectors/build && examples/moq/endpoints/peer/build
	@tools/lint examples/moq && cd examples/moq && $(GO) vet ./... && $(GO) test -race $(TESTFLAGS) ./... && $(GO) run ./conformance

quic-upstream: ## quic-go's own tests on the fork; without hooks, the fork does what upstream does
	@cd examples/quicfork && $(GO) run ./cmd/upstreamtests ../../.cache/quic-upstream
	@cd examples/quicfork && $(GO) test -count=1 -run '^TestSameAsUpstream$$' .

quic-hooks: quic ## each hook of the fork left out once: its test has to fail
	@cd examples/quicfork && $(GO) run ./cmd/hookcheck

image: ## a container image of a server with its relay in dist/, without Docker; SERVER=./examples/turn, VERSION=v0.1.0, ARCH=arm64
	@$(GO) run ./tools/image $(if $(SERVER),-server $(SERVER)) $(if $(VERSION),-version $(VERSION)) $(if $(ARCH),-arch $(ARCH))

release: ## a release in dist/: binaries, package, image, SBOM, checksums; VERSION=v0.1.0 says the version
	@export SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH-$$(git log -1 --format=%ct)}; \
		cd tools/release && $(GO) run . -root ../.. -version '$(VERSION)' -o ../../dist

test-release: ## a release made three times, in two folders: the same bytes, what it refuses, and what removing its package leaves
	@tools/ensure build root
	@cd tools/release && $(GO) vet ./... && $(GO) test -timeout 30m ./...

test-package: ## the Debian package on a bare Debian under systemd: installed, upgraded and killed while packets flow, removed, purged
	@tools/fresh tools/release/trial

tidy: quic ## go.mod and go.sum of all modules; the version of the runtime needs no tag for it
	@runtime=github.com/fastrelay/fastrelay-gen/runtime; export GOWORK=off; \
		$(GO) mod edit -replace $$runtime=./runtime && { $(GO) mod tidy; $(GO) mod edit -dropreplace $$runtime; }
	@for m in runtime examples bench experiment examples/quicfork examples/quic examples/moq tools/release; do (cd $$m && $(GO) mod tidy) || exit 1; done

clean: ## what was built here
	@rm -rf bin dist .cache fastrelay-failure-* examples/quicfork/quic-go
