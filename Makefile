# Two commands matter: `make demo` and `make test`. Python 3.11 or later and make are all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
E2E := .e2e
RAGRAILS := 'ragrails[qdrant,voyage]==0.2.1'

.PHONY: demo test lint format types bench nightly e2e wheel wheel-test clean

demo: $(VENV)/.local  ## fill the sample's engines, serve them, ask one question
	@$(BIN)/rcp-gateway demo

test: $(VENV)/.dev lint types  ## everything CI runs
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not nightly"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev  ## measurements, side by side with peers in one run
	$(BIN)/python -m benchmarks

nightly: $(VENV)/.dev  ## soak and fuzz
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m nightly --timeout 1800
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not nightly" --hypothesis-profile thorough --timeout 1800

# The real server in an environment of its own, so that nothing it needs is here. Where it cannot be installed the tests say why.
e2e: $(VENV)/.dev  ## the real RAGRails server behind the gateway
	@mkdir -p $(E2E)
	@test -x $(E2E)/ragrails/bin/python || $(PYTHON) -m venv $(E2E)/ragrails
	@if $(E2E)/ragrails/bin/python -m pip --disable-pip-version-check --quiet install $(RAGRAILS) 2>$(E2E)/told; \
	then rm -f $(E2E)/unavailable; else { grep -m 1 ERROR $(E2E)/told || echo pip failed; } >$(E2E)/unavailable; fi
	$(BIN)/python -m pytest tests/e2e

wheel-test: $(VENV)/.dev  ## the wheel alone, in a fresh environment
	$(BIN)/python -m pytest -m nightly tests/end_to_end/test_wheel.py

wheel: $(VENV)/.dev
	$(PIP) wheel --no-deps --wheel-dir dist .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The stamps remember what was installed; a changed pyproject or constraints file installs again.
$(VENV)/.local: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt --editable '.[local]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.local

clean:
	rm -rf $(VENV) $(E2E) .data dist build .mypy_cache .ruff_cache .pytest_cache
