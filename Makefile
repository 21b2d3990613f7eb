# A thin front to tools/ and Meson; `make help` lists the targets.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 300
export JOBS

all: ## build once, libonce.a and libonce.so into build/ (the default)
	@tools/setup build
	@tools/build build -- --quiet

demo: all ## show what it does, in under a minute
	@tools/demo

check: ## every test, with the sanitizers or in the product's own build
	@tools/setup check
	@/usr/bin/python3 tools/check

check-all: ## the same, every test in the plain and in the sanitized build
	@tools/setup check
	@/usr/bin/python3 tools/check --all

sim: ## the simulator alone
	@tools/setup check
	@/usr/bin/python3 tools/check --only sim

fuzz: ## each fuzz target for FUZZ_SECONDS (60)
	@tools/setup check
	@/usr/bin/python3 tools/check --only fuzz --fuzz-seed 0 --fuzz-seconds $(FUZZ_SECONDS)

bench: all ## measure on this machine
	@tools/setup bench
	@tools/bench

bench-full: all ## the same with ten times as many messages: memory and cost as they grow
	@tools/build build -- --quiet benches
	@build/bench/bench_run --full

soak: all ## the long runs: SOAK_SECONDS (300) of seeds and of kills each, then a sweep of 5 of 20 million entries
	@tools/setup check
	@tools/build build -- --quiet all tests benches
	@tools/soak $(SOAK_SECONDS)

coverage: ## lines and branches that unit, conform and sim reach
	@tools/setup coverage
	@/usr/bin/python3 tools/check --coverage

format: ## bring all C files into shape with clang-format 14
	@tools/setup check
	@git ls-files '*.c' '*.h' | xargs clang-format-14 -i

install: all ## into DESTDIR and PREFIX (/usr/local)
	@meson configure build -Dprefix=$(PREFIX) >/dev/null
	@tools/build build -- --quiet >/dev/null
	@DESTDIR=$(DESTDIR) meson install -C build --no-rebuild --quiet

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

.PHONY: all demo check check-all sim fuzz bench bench-full soak coverage format install clean help
