# One command each, on a machine that has only Python 3.11 (or newer) and make: `make demo`, `make test`.

PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest

# Suites that start real clusters, in the order of their cost. What is in none of them is fast.
CLUSTER_SUITES := local_ray or workflow
SLOW_SUITES := $(CLUSTER_SUITES) or thorough or bench or soak
BENCHES := bench_plan_gang bench_leases bench_sim_start bench_step_time bench_start_up bench_checkpoint \
	bench_averaging bench_recovery bench_replicas bench_diloco

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-fast test-cluster check format bench soak thorough constraints clean

help:  ## What can be made (this text)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## Train a language model across two simulated TPU slices
	@$(BIN)/raytpu run deploy/workloads/stdlib-gpt.yaml --on sim --fresh

test: test-fast test-cluster  ## The tests (about 20 minutes on 2 cores); a failure among the fast ones ends it

thorough: test $(INSTALLED)  ## The tests, and slower variations of them
	@$(PYTEST) -m thorough

test-fast: $(INSTALLED)  ## Tests that start no cluster
	@$(PYTEST) -m "not ($(SLOW_SUITES))"

test-cluster: $(INSTALLED)  ## Tests on real Ray clusters of simulated slices, then whole stories
	@$(PYTEST) -m "$(CLUSTER_SUITES)"

# lint-imports without its cache: that remembers where a name led before a module was added or removed.
check: $(INSTALLED)  ## Format, lint, types and import contracts
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports --no-logo --no-cache

format: $(INSTALLED)  ## Rewrite the sources in the project's format
	@$(BIN)/python -m ruff format .
	@$(BIN)/python -m ruff check --fix .

bench: $(INSTALLED)  ## Benchmarks, side by side with the same program without raytpu; one JSON line each
	@for bench in $(BENCHES); do $(BIN)/python -m tests.bench.$$bench || exit 1; done

soak: $(INSTALLED)  ## Long runs of fault injection
	@$(PYTEST) -m soak -s

setup: $(INSTALLED)  ## Only the set-up that the others do by themselves: .venv with the pinned packages

constraints:  ## Resolve every extra anew and rewrite constraints.txt
	@$(MAKE) $(BIN)/python
	@echo "raytpu: resolving every extra"
	@$(PIP) install -qq --dry-run --ignore-installed --report $(VENV)/resolution.json '.[dev,gcs,notebook,tpu]'
	@$(BIN)/python .ci/renew_constraints.py $(VENV)/resolution.json > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt
	@echo "raytpu: wrote constraints.txt; now: make check test"

clean:  ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find raytpu tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "raytpu: no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "raytpu: $(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "raytpu: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; \
		exit 1; }

# Installed again whenever the project's requirements or pins change; the stamp is written last, so an
# interrupted installation is taken up again.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "raytpu: installing the pinned packages into $(VENV) (once; takes minutes on the first run)"
	@$(PIP) install -qq --constraint constraints.txt --editable '.[dev]'
	@touch $@
