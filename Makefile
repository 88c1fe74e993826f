# `make drill` and `make test` need git, make, python3 (3.11 or later) and python3-venv, and the ordinary package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: drill test lint types floors tests bench mutants acceptance clean

# The main job: the incident and its relatives on the embedded engine, each protection off, then on.
drill: $(VENV)/core
	$(BIN)/kvfence drill

test: lint types floors tests

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

floors: $(VENV)/dev
	$(BIN)/lint-imports

tests: $(VENV)/dev
	$(BIN)/python -m pytest

# Ratios against named peers, in one run. Needs ripgrep (Debian: ripgrep) for its ratio; says so where it is absent.
bench: $(VENV)/dev
	$(BIN)/python benchmarks/audit_log.py
	$(BIN)/python benchmarks/live_workers.py
	$(BIN)/python benchmarks/tags.py
	$(BIN)/python benchmarks/handoff.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/counting.py
	$(BIN)/python benchmarks/gateway.py

# Real engines, prefill and decode, on this machine's CPU cores: what leaks, and what the guards stop. Downloads them, takes
# minutes a release, and starts servers on loopback only. ONLY=sglang-0.5.19 (or vllm-0.32.0) runs one.
acceptance: $(VENV)/core
	$(BIN)/python -m acceptance $(if $(ONLY),--only $(ONLY))

# Faults put into a copy of the fence, one at a time: the simulator or a test must notice each. Some minutes.
mutants: $(VENV)/dev
	$(BIN)/python -m mutants.run

$(VENV)/core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
