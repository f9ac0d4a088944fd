# `make help` lists the targets. Each one sets up .venv first, once per change of pyproject.toml or constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint slow clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## export the bundled model with --variant el, then summarise the bundled texts
	$(BIN)/export-model demo --variant el --output build/demo-el --force
	$(BIN)/run-model build/demo-el export/demo/examples.txt

test: lint ## lint, types, and every test that needs neither minutes nor a GPU
	$(BIN)/python -m pytest -m "not slow and not gpu"

lint: $(READY) ## ruff and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

slow: $(READY) ## the tests that take minutes or gigabytes
	$(BIN)/python -m pytest -m "slow and not gpu"

clean: ## remove .venv, build output and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find export graph_passes plugins deploy tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Tightbeam needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
	       "name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@
