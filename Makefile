# `make` lists the targets. All tools are installed in .venv; the rest of the machine is unchanged.
PYTHON ?= python3
VENV := .venv
EXTENSION := build/extension
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST = $(BIN)/pytest -q -n $(JOBS) --dist worksteal
CMAKE := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake

NATIVE := CMakeLists.txt $(shell find native -name '*.cc' -o -name '*.h' -o -name '*.cmake')
FORMATTED := $(filter %.cc %.h,$(NATIVE)) $(addprefix src/slackline/circuit/simulate/,harness.cc dma.h model.h packets.h)
FOLDERS := $(wildcard src tests examples benchmarks)
RANKS ?= 4
JOBS ?= 4
BENCH ?= $(wildcard benchmarks/*/main.py)
FUZZ ?= $(patsubst native/fuzz/%.cc,%,$(wildcard native/fuzz/*.cc))
SECONDS ?= 60

# Tests start hundreds of interpreters, which must share the compiled modules and not compile them each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-torch test-native simulate fuzz check bench campaign format generate docs plots wheel gpu-kit clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(VENV)/.package  ## create .venv, install what is needed, build the extension (quick when nothing changed)

demo: setup  ## train on 4 ranks of this machine: PCCO, DDP over slackline, DDP over gloo; then one hash on 1 and 3 ranks
	$(BIN)/slackline run --ranks $(RANKS) examples/train_digits.py --compare slackline gloo
	@for ranks in 1 3; do \
	  OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node $$ranks examples/one_hash.py --steps 20 || exit 1; \
	done

test: setup  ## every kind of test, in minutes; JOBS=4 at a time (docs/testing.md)
	$(PYTEST) -m "not slow" tests

test-full: setup build/native-address.simulated  ## the same tests with all their cases: three quarters of an hour
	$(PYTEST) --hypothesis-profile full tests

# The wheel is tested in an environment of its own, build/torch-$(VERSION), which `make clean` removes.
VERSION ?= 2.14.1
TORCH := build/torch-$(VERSION)
TORCH_PIP := $(TORCH)/bin/pip install --quiet --disable-pip-version-check -c $(TORCH)/constraints.txt
TORCH_TOOLS := hypothesis jinja2 numpy protobuf pytest pytest-timeout pytest-xdist requests scikit-learn scipy tabulate tensorboard \
  "torchft; platform_machine == 'x86_64' and python_version < '3.14'"
TORCH_TESTS ?= tests/unit/backend tests/unit/overlap tests/unit/pipeline tests/unit/test_entry.py \
  tests/multiproc/elastic tests/multiproc/pipeline tests/multiproc/test_gloo_programs.py $(wildcard tests/multiproc/test_torch_*.py)
test-torch: setup $(TORCH)/.torch  ## tests on torch with another version, VERSION=2.14.1; gigabytes to install
	rm -rf $(TORCH)/wheel
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --config-settings build-dir=$(EXTENSION) --wheel-dir $(TORCH)/wheel .
	$(TORCH_PIP) $(TORCH)/wheel/*.whl
	$(TORCH_PIP) --no-deps --force-reinstall $(TORCH)/wheel/*.whl
	$(TORCH)/bin/pytest -q -n $(JOBS) --dist worksteal -m "not slow" $(TORCH_TESTS)

$(TORCH)/.torch: constraints.txt | $(BIN)/python
	$(BIN)/python -m venv $(TORCH)
	sed '/^torch==/d' constraints.txt > $(TORCH)/constraints.txt
	$(TORCH_PIP) torch==$(VERSION) $(TORCH_TOOLS)
	@touch $@

NATIVE_PASSED := $(patsubst %,build/native-%.passed,plain address thread fuzzed)
# The reports of the sanitizers are printed last, since the beginning of a long output may be cut off.
test-native: export ASAN_OPTIONS := log_path=$(CURDIR)/build/sanitizer:print_legend=0
test-native: export UBSAN_OPTIONS := log_path=$(CURDIR)/build/sanitizer:print_stacktrace=1
test-native: export TSAN_OPTIONS := log_path=$(CURDIR)/build/sanitizer
test-native: setup  ## the native core's tests: plain, address + undefined, thread sanitizer, fuzzers briefly
	rm -f build/sanitizer.*
	+$(MAKE) --no-print-directory -j 2 --output-sync $(NATIVE_PASSED) || \
	  { find build -maxdepth 1 -name 'sanitizer.*' -exec head -qn 60 {} +; exit 1; }

fuzz: $(VENV)/.tools  ## every parser of the core for SECONDS=60 each, or FUZZ=<name>; with libFuzzer where there is clang
ifneq ($(shell command -v clang++),)
	CXX=clang++ $(CMAKE) $(NATIVE_BUILD) -B build/native-fuzzer -DSLACKLINE_SANITIZE=fuzzer -DCMAKE_BUILD_TYPE=Debug
	$(CMAKE) --build build/native-fuzzer --target fuzzers
	set -e; for name in $(FUZZ); do \
	  mkdir -p build/fuzz/$$name; \
	  build/native-fuzzer/slackline_fuzz_$$name --write-seeds build/fuzz/$$name; \
	  build/native-fuzzer/slackline_fuzz_$$name -max_total_time=$(SECONDS) -max_len=2000 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/ build/fuzz/$$name $$(find native/fuzz/found -mindepth 1 -name $$name); \
	done
else
	$(call fuzz_alone,$(SECONDS))
endif

FIRST ?= $(shell date +%s)000000
FOR ?=
simulate: $(VENV)/.package  ## whole engines in simulated time, until one breaks a law; FIRST=<seed>, FOR=<seconds>
	$(CMAKE) --build $(EXTENSION) --target slackline_simulation
	$(EXTENSION)/slackline_simulation --shrink --first $(FIRST) $(if $(FOR),--seconds $(FOR))

check: setup  ## lint, format, types, import contracts, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(FORMATTED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

bench: setup  ## run the benchmarks, or one: BENCH=benchmarks/<name>/main.py
	set -e; for bench in $(BENCH); do $(BIN)/python $$bench; done

# Pieces of at most 20 minutes; each appends a record to benchmarks/campaigns/$(NAME).jsonl.
NAME ?= models
PIECES ?=
MINUTES ?=
SHOW ?=
SEEDS ?=
campaign: setup  ## many generated cases: NAME=models, in PIECES=1 or more; SHOW=1 prints the sum, SEEDS="17" repeats
	$(BIN)/python benchmarks/campaigns/campaign.py $(NAME) $(if $(PIECES),--pieces $(PIECES)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SHOW),--show) $(if $(SEEDS),--seeds $(SEEDS))

format: setup  ## rewrite Python and C++ as the formatters want them
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

generate: setup  ## rewrite the generated files: the C++ frame header, the extension's stub, the page of the commands
	$(BIN)/python -m slackline.wire > build/wire.h && mv build/wire.h native/include/slackline/wire.h
	$(BIN)/python -m nanobind.stubgen -q -m slackline._native -o src/slackline/_native.pyi
	$(BIN)/python -m typer slackline.cli utils docs --name slackline --title "Command line" > build/commands.md && mv build/commands.md docs/command-line.md

docs: setup  ## build the site of the pages in build/site; neither the build nor the site needs a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

plots: setup  ## draw the figures of docs/benchmarks.md from its tables, and from the records of two benchmarks
	$(BIN)/python benchmarks/plots.py
	$(BIN)/python benchmarks/wire-efficiency/plot.py benchmarks/wire-efficiency/failover.json docs/plots/failover.svg
	$(BIN)/python benchmarks/fine-tuning-time/plot.py benchmarks/fine-tuning-time/curve.json \
	  benchmarks/fine-tuning-time/lab-200m.json docs/plots/fine-tuning.svg

wheel: setup  ## dist/*.whl for this Python, checked by auditwheel, and the source distribution
	rm -rf build/dist dist
	$(BIN)/python -m build --no-isolation --outdir build/dist .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist

# For a machine with a GPU, Python 3.12 or later, torch and no network: benchmarks/gpu/README.md.
PYTHON312 ?= $(shell for each in python3.12 $(HOME)/.pyenv/versions/3.12*/bin/python3; do "$$each" -c "" 2> /dev/null && echo "$$each" && break; done)
GPU_KIT := build/gpu-kit
GPU_NEEDS := msgspec pydantic rich typer xxhash hypothesis numpy pytest pytest-timeout
gpu-kit: setup  ## build/gpu-kit, the folder to carry to a machine with a GPU; PYTHON312=python3.12
	@test -n "$(PYTHON312)" || { echo "the kit needs Python 3.12 for its wheel: make gpu-kit PYTHON312=<path>"; exit 1; }
	rm -rf $(GPU_KIT) && mkdir -p $(GPU_KIT)/wheels $(GPU_KIT)/benchmarks
	$(PYTHON312) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(GPU_KIT)/wheels .
	$(PYTHON312) -m pip download --quiet --disable-pip-version-check --only-binary=:all: --dest $(GPU_KIT)/wheels \
	  --constraint constraints.txt $(GPU_NEEDS)
	cp -r pyproject.toml tests $(GPU_KIT)
	cp -r benchmarks/_harness benchmarks/gpu $(GPU_KIT)/benchmarks
	find $(GPU_KIT) -name __pycache__ -prune -exec rm -r {} +

clean:  ## remove everything that was built, .venv included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "slackline needs Python 3.11 or later; try make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: constraints.txt | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) scikit-build-core nanobind cmake ninja
	@touch $@

# --config-settings and not -C, which pip 23.0 of Debian 12 lacks.
$(VENV)/.package: $(VENV)/.tools pyproject.toml $(NATIVE)
	$(PIP) --no-build-isolation --config-settings build-dir=$(EXTENSION) \
	  --config-settings cmake.define.SLACKLINE_NATIVE_TESTS=ON \
	  -e '.[test,dev,docs,wheel,tls,circuit,forecast,trace,opentelemetry,dashboard,metrics]'
	@touch $@

# gcc's thread sanitizer needs a fixed address layout on kernels with many random bits; a container may refuse it.
FIXED_LAYOUT = $(shell setarch -R true 2> /dev/null && echo setarch -R)

NATIVE_BUILD := -S . -G Ninja -DSLACKLINE_NATIVE_TESTS=ON --log-level=WARNING
# Fuzz without libFuzzer: run the seeds, the inputs found earlier, and mutations in a fixed order.
define fuzz_alone
	$(CMAKE) $(NATIVE_BUILD) -B build/native-address -DSLACKLINE_SANITIZE=address -DCMAKE_BUILD_TYPE=Debug
	$(CMAKE) --build build/native-address --target fuzzers
	set -e; for name in $(FUZZ); do \
	  build/native-address/slackline_fuzz_$$name -seconds=$(1) $$(find native/fuzz/found -mindepth 1 -name $$name); \
	done
endef

build/native-fuzzed.passed: build/native-address.passed
	$(call fuzz_alone,4)
	@touch $@

# These tests link the core that `make setup` has built for the extension.
build/native-plain.passed: $(VENV)/.package
	$(CMAKE) --build $(EXTENSION) --target slackline_native_tests slackline_simulation
	$(EXTENSION)/slackline_native_tests
	$(EXTENSION)/slackline_allocation_tests
	$(EXTENSION)/slackline_simulation --replay native/tests/simulation/found.txt
	$(EXTENSION)/slackline_simulation --shrink --count 2000
	@touch $@

build/native-%.passed: $(VENV)/.tools $(NATIVE)
	$(CMAKE) $(NATIVE_BUILD) -B build/native-$* -DSLACKLINE_SANITIZE=$* -DCMAKE_BUILD_TYPE=Debug
	$(CMAKE) --build build/native-$* --target slackline_native_tests
	$(FIXED_LAYOUT) build/native-$*/slackline_native_tests
	$(FIXED_LAYOUT) build/native-$*/slackline_allocation_tests
	@touch $@

build/native-address.simulated: $(VENV)/.tools $(NATIVE)
	$(CMAKE) $(NATIVE_BUILD) -B build/native-address -DSLACKLINE_SANITIZE=address -DCMAKE_BUILD_TYPE=Debug
	$(CMAKE) --build build/native-address --target slackline_simulation
	ASAN_OPTIONS=detect_leaks=0 build/native-address/slackline_simulation --count 500
	@touch $@
