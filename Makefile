# Two commands are enough: `make run` and `make test`. Each makes .venv and installs what it needs by itself.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILT_FROM := pyproject.toml src/feddiverse/models/layers/kernels.c
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export RAY_USAGE_STATS_ENABLED = 0
# Threads that wait for work give their core away: on a busy machine they would else spin it away from who has some.
export OMP_WAIT_POLICY = PASSIVE

.PHONY: run test coverage fuzz drill properties sanitize check format docs bench deployment clean

run: $(VENV)/run.stamp
	$(BIN)/feddiverse study quickstart

# What lies on this machine can neither help a test nor harm it: home and cache are empty, and gone afterwards.
IN_EMPTY_HOME = home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT \
  && unset "$${!XDG_@}" FEDDIVERSE_DEBUG && export HOME="$$home" FEDDIVERSE_HOME="$$home/cache"

PYTEST = $(IN_EMPTY_HOME) && $(BIN)/python -m pytest -n 2 --dist worksteal
test: check browser
	$(PYTEST)

# The same tests, and which lines they reach: apart, since watching every line takes half as long again.
coverage: $(VENV)/dev.stamp browser
	$(PYTEST) --cov --cov-report=term

# Every kind of input, seeded and bounded; the table is in docs/trust.md.
FUZZ_CASES ?= 10000
FUZZ_SEED ?= 0
fuzz: $(VENV)/dev.stamp
	$(IN_EMPTY_HOME) && $(BIN)/python -m benchmarks.fuzzing $(FUZZ_CASES) $(FUZZ_SEED)

# Kills, hostile replies, damaged run directories; the table is in docs/trust.md.
DRILL_SCALE ?= 1
drill: $(VENV)/dev.stamp
	$(IN_EMPTY_HOME) && $(BIN)/python -m benchmarks.drill $(DRILL_SCALE)

# Properties on examples that nobody tried yet, again and again; what fails is tried first the next time.
FUZZ_SECONDS ?= 600
properties: $(VENV)/dev.stamp
	$(IN_EMPTY_HOME) && export FEDDIVERSE_FUZZ=1 && while [ $$SECONDS -lt $(FUZZ_SECONDS) ]; do \
	  $(BIN)/python -m pytest -n 2 --dist worksteal --quiet -m hypothesis || exit 1; done

# The kernels' tests with a library that stops at the first access beyond an array and at undefined behaviour.
# The sanitizers' libraries come before all others in the process; Python itself is not checked for leaks.
SANITIZED := $(VENV)/kernels-sanitized.so
SANITIZERS = $(foreach name,libasan.so libubsan.so libstdc++.so,$(shell $(CC) -print-file-name=$(name)))
sanitize: $(VENV)/dev.stamp $(SANITIZED)
	FEDDIVERSE_KERNELS=$(SANITIZED) LD_PRELOAD="$(SANITIZERS)" ASAN_OPTIONS=detect_leaks=0 \
	  $(BIN)/python -m pytest --capture=sys tests/models/layers

$(SANITIZED): $(BUILT_FROM) | $(VENV)/bin/python
	$(CC) -shared -fPIC -g -O2 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
	  -std=gnu11 -fopenmp-simd -Wall -Wextra $(filter %.c,$^) -o $@ -lm

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation as a site, in site/. A broken link is an error.
docs: $(VENV)/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks

deployment: $(VENV)/dev.stamp
	$(BIN)/python examples/deployment/deploy.py
	$(BIN)/python examples/deployment/no_data_at_server.py
	$(BIN)/python examples/deployment/lose_a_node.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The CPU build of torch first and by itself: with it in place no other package asks for a CUDA build.
$(VENV)/torch.stamp: constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	@touch $@

$(VENV)/run.stamp: $(BUILT_FROM) $(VENV)/torch.stamp
	$(PIP) --editable .
	@touch $@

$(VENV)/dev.stamp: $(BUILT_FROM) $(VENV)/torch.stamp
	$(PIP) --editable '.[dev,flower,hub,privacy,tensorboard,mlflow,wandb]'
	@touch $@ $(VENV)/run.stamp

# The report is tested in a real browser where one is or can be installed; elsewhere that test is skipped.
.PHONY: browser
browser:
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get update && apt-get install --yes chromium chromium-driver; } >/dev/null 2>&1; } \
	  || echo "No chromedriver here: the browser test will be skipped."

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .coverage
