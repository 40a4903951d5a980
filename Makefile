# Coterie's commands; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAISS ?= cpu
STAMP := $(VENV)/.installed

.PHONY: help install demo check test test-all lint format bench clean

help:  ## This list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

install: $(STAMP)  ## Make .venv and install everything (FAISS=gpu for faiss-gpu).

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with make PYTHON=python3.12."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[faiss-$(FAISS),dev]'
	@touch $(STAMP)

demo: install  ## FedMCC on handwritten digits: 5 clients, about 2 minutes on 2 cores.
	$(BIN)/python -m ray_jobs.train experiment=fedmcc_digits

check: install lint  ## lint, and for a minute the tests that the changes since main touch.
	$(BIN)/python -m tests.check

test: install  ## Every test but the slow ones.
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not slow'

test-all: install  ## Every test.
	$(BIN)/python -m pytest

lint: install  ## ruff, mypy strict, import-linter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## Measure; prints tables as in docs/benchmarks.md.
	$(BIN)/python -m tests.benchmarks

clean:  ## Remove .venv and caches.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
