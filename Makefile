# Two commands on a fresh machine: `make demo` and `make test`. Both make .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONFORMANCE ?= ../shared/conformance

.PHONY: help venv demo test check format unit lit conformance docs clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(STAMP) ## make .venv with everything that tests and demo need

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip "setuptools>=77"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,demo]"
	touch $@

demo: venv ## train a digit classifier and a small GPT, eager and compiled; tables and plots in build/demo
	$(BIN)/python -m demo

check: venv ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: venv ## format and fix what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: venv ## pytest
	$(BIN)/python -m pytest -q

lit: venv ## pass and dialect tests on .mlir text
	$(BIN)/lit -q tests/lit

conformance: venv ## every op of the first tier against eager torch, where the harness is present
	$(BIN)/python tests/run_conformance.py $(CONFORMANCE)

test: check unit lit conformance ## everything that must hold before a commit lands

docs: venv ## write the generated pages (docs/ir.md, docs/passes.md, docs/primitives.md, docs/ops.md)
	$(BIN)/python -m docs.generate

clean: ## remove build products, not .venv
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
