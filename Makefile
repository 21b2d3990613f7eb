# Targets that call tools/ and Meson; `make help` lists them.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 300
export JOBS

all: ## build once, libonce.a and libonce.so into build/ (the default)
	@tools/setup build
	@tools/build build -- --quiet

demo: all ## show payments, duplicates and SIGKILL in under a minute
	@tools/demo

check: ## run every test, in the sanitized or in the plain build
	@tools/setup check packages
	@/usr/bin/python3 tools/check

check-all: ## run every test in both builds, plain and sanitized
	@tools/setup check packages
	@/usr/bin/python3 tools/check --all

sim: ## run the simulator
	@tools/setup check packages
	@/usr/bin/python3 tools/check --only sim

fuzz: ## run each fuzz target for FUZZ_SECONDS (60)
	@tools/setup check packages
	@/usr/bin/python3 tools/check --only fuzz --fuzz-seed 0 --fuzz-seconds $(FUZZ_SECONDS)

bench: all ## measure the speed on this machine
	@tools/setup bench
	@tools/bench

bench-full: all ## measure with ten times as many messages: how memory and cost grow; of Kafka, memory over 5 million
	@tools/setup bench
	@tools/build build -- --quiet benches
	@build/bench/bench_run --full
	@build/bench/bench_kafka --only memory --full

soak: all ## run for long: SOAK_SECONDS (300) per part of seeds and kills, then sweep 5 of 20 million entries
	@tools/setup check
	@tools/build build -- --quiet all tests benches
	@tools/soak $(SOAK_SECONDS)

coverage: ## print the line and branch coverage of unit, conform and sim
	@tools/setup coverage
	@/usr/bin/python3 tools/check --coverage

format: ## format all C files with clang-format 14
	@tools/setup check
	@git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format-14 -i

install: all ## install into DESTDIR and PREFIX (/usr/local)
	@meson configure build -Dprefix=$(PREFIX) >/dev/null
	@tools/build build -- --quiet >/dev/null
	@DESTDIR=$(DESTDIR) meson install -C build --no-rebuild --quiet

clean: ## remove build/
	rm -rf build

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

.PHONY: all demo check check-all sim fuzz bench bench-full soak coverage format install clean help
