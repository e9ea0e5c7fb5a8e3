# The only entry to the workflow. `make help` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --universal --no-header --python-version 3.11
INSTALL := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps
PINNED := --require-hashes --only-binary :all:

.DEFAULT_GOAL := help
.PHONY: help setup run test bench check fmt lock clean

help: ## Show what can be done
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## Make .venv with everything in it, .venv/bin/cadenza included

run: $(VENV)/.run ## Run the service on the embedded default (ARGS="--port 9000" for more)
	@exec $(BIN)/cadenza serve $(ARGS)

test: $(VENV)/.dev ## Run every test (ARGS="tests/unit -k sse" for some)
	@$(BIN)/pytest --numprocesses auto --dist loadfile $(ARGS)

bench: $(VENV)/.bench ## Measure what it costs, beside other gateways (ARGS=--quick for two minutes)
	@$(BIN)/python -m bench $(ARGS)

check: $(VENV)/.dev ## Format, lint, types and import direction
	@$(BIN)/ruff format --check --quiet . || { echo 'format: run "make fmt"'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

fmt: $(VENV)/.dev ## Format the code and mend what lint can mend
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

lock: $(VENV)/.uv ## Pin the dependencies again, with hashes (ARGS=--upgrade for newer releases)
	@echo uv | $(COMPILE) - -o requirements/uv.txt $(ARGS)
	@$(COMPILE) pyproject.toml -o requirements/run.txt $(ARGS)
	@$(COMPILE) pyproject.toml --group dev -c requirements/run.txt -o requirements/dev.txt $(ARGS)
	@$(COMPILE) pyproject.toml --group bench -c requirements/run.txt -o requirements/bench.txt $(ARGS)
	@for pins in bench/peers/*.in; do $(COMPILE) $$pins -o $${pins%.in}.txt $(ARGS); done

clean: ## Remove the virtual environment and caches (not the data)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.uv: requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'Cadenza needs Python 3.11 or later: make PYTHON=/path/to/python3.11'; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(VENV)/.run: $(VENV)/.uv requirements/run.txt pyproject.toml
	@$(INSTALL) $(PINNED) -r requirements/run.txt
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@$(INSTALL) $(PINNED) -r requirements/dev.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	@$(INSTALL) $(PINNED) -r requirements/bench.txt
	@touch $@
