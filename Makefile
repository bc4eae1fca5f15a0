# The two commands: `make demo` and `make check`. Everything else is Meson's.
QUESTION ?= What does this manual describe?
TOKENS ?= 6000
KV_RAM ?= --kv-ram 17M --kv-disk build/demo:512M

.PHONY: all build setup fetch demo check bench clean

all: build

# The program is then build/tools/headrace.
build: build/build.ninja
	ninja -C build

build/build.ninja:
	meson setup build --werror -Dtools=enabled

setup:
	sh scripts/setup.sh

fetch:
	sh scripts/fetch.sh

# Reads the first TOKENS tokens of the Debian Policy Manual with an eighth of their K/V in memory, then
# answers two questions from forks. KV_RAM= keeps all in memory.
demo: setup
	$(MAKE) build fetch
	build/tools/headrace run --model build/demo/model.gguf --text build/demo/document.txt \
	  $(KV_RAM) --tokens $(TOKENS) --ask "$(QUESTION)" --ask "Is this manual a tutorial on building packages?"

# All tests; prints the time of each group and ends with a line of counts.
check: setup
	$(MAKE) fetch
	python3 scripts/check.py

# Every kernel level, decode beside a read sweep of the memory; the figures in build/bench.json.
# BENCH='--caps avx2' measures one level (all of them take many minutes on two cores).
bench: setup
	$(MAKE) build
	build/tests/check/headrace-check --bench $(BENCH) --json build/bench.json

clean:
	rm -rf build build-asan build-tsan build-clang
