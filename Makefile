# Needs git, make and Python 3.11 or later with venv; uv is used where it is on PATH.
# Everything is installed in .venv from requirements.lock, whose hashes are checked.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := $(shell command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1 && echo uv)
BENCHES = $(filter-out bench/_% bench/conftest.py bench/budgets.py bench/twin.py bench/real_fleet.py,$(wildcard bench/*.py))
ARGS ?=
N ?= 3

# Without it, pyright asks the network for its newest version before it checks anything.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

##@ What people run
.PHONY: help demo demo-clean
help:  ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY)  ## Run the example: ten small datasets, a simulated SGLang, a Redis of its own
	$(BIN)/tokenmill run examples/quickstart.toml $(ARGS)
	@echo "  start the example from nothing:       make demo-clean"

demo-clean:  ## Remove what the example wrote, so that the next demo starts from nothing
	rm -rf examples/out

##@ What developers run (ARGS="..." is passed on)
.PHONY: setup test soak lint lint-style lint-format lint-types lint-imports lint-files bench bench-budget bench-twin lock licences
setup: $(READY)  ## Install the project and its tools in .venv

# Four at once on two cores, since half of it waits for leases to run out; in the files' order, which has the long ones first.
test: $(READY)  ## Run the tests
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

soak: $(READY)  ## Run N new seeds of random faults (N=3), or the seeds named: SEEDS="17 18"
	$(BIN)/python -m tests.faults.soak $(or $(SEEDS),--new $(N))

lint: lint-style lint-format lint-types lint-imports lint-files  ## Check style, formatting, types, the packages' layers, shell and Docker files

lint-style: $(READY)
	$(BIN)/ruff check .

lint-format: $(READY)
	$(BIN)/ruff format --check .

lint-types: $(READY)
	$(BIN)/pyright

lint-imports: $(READY)
	$(BIN)/lint-imports

lint-files: $(READY)
	$(BIN)/shellcheck .ci/run deploy/slurm/tokenmill.sbatch
	$(BIN)/hadolint Dockerfile

bench: $(READY)  ## Run the benchmarks
	@set -e; for bench in $(BENCHES); do echo "== $$bench"; $(BIN)/python $$bench $(ARGS); done

bench-budget: $(READY)  ## Compare five ways to stop at a budget (an hour; ARGS=--quick for a minute)
	$(BIN)/python bench/budgets.py $(ARGS)

bench-twin: $(READY)  ## Run one of its cells with real processes, beside its virtual twin (ten minutes)
	$(BIN)/python bench/twin.py $(ARGS)

lock:  ## Resolve the dependencies again (needs uv; ARGS=--upgrade takes newer releases)
	$(PYTHON) .ci/lock.py $(ARGS)

licences: $(READY)  ## Write docs/licences.md again, after the lock
	$(BIN)/python .ci/licences.py

# The stamp is written last: an interrupted installation is done again.
$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tokenmill needs Python 3.11 or later; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@rm -f $(READY)
ifeq ($(UV),uv)
	[ -x $(BIN)/python ] || uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
else
	[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
endif
	@touch $(READY)
