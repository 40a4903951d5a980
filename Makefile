# Coterie's commands; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAISS ?= cpu
SCALE ?= cpu
DEVICE ?= cuda
MINUTES ?= 40
STAMP := $(VENV)/.installed-$(FAISS)
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder --durations=20 --durations-min=10
SHELL := bash

# What `make install` shows of pip's output: files of 10 MB and more, and the longest step.
SIZE := \(([0-9]{2,}\.[0-9] MB|[0-9.]+ GB)\)
FILE := ^ *(Downloading|Using cached) (.*/)?([^/-]+-[^/-]+)-[^/]* ($(SIZE))
STEP := ^Installing collected packages.*

.PHONY: help install demo cluster check test test-ci test-all lowest newest lint format docs bench profile study results gpu chaos clean

help:  ## This list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

install: $(STAMP)  ## Make .venv and install everything (FAISS=gpu for faiss-gpu).

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with make PYTHON=python3.12."; exit 1; }
	@echo "Installing Coterie with PyTorch, Ray and 150 other packages into $(VENV)."
	@echo "On Linux it takes 7.5 GB, 4 GB of it PyTorch's CUDA libraries, and some minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-*  # FAISS for CPUs and for GPUs share their files: one at a time
	@$(BIN)/python -m pip uninstall --quiet --yes faiss-cpu faiss-gpu-cu12 2> /dev/null
	@set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check \
		--progress-bar off --constraint constraints.txt \
		--editable '.[faiss-$(FAISS),dev]' | sed -nE \
		-e 's@$(FILE)@  \3 \4@p' -e 's@$(STEP)@  unpacking: the longest step@p'
	@touch $(STAMP)
	@echo "Installed: $$(du -sh $(VENV) | cut -f 1) in $(VENV)."

demo: install  ## Concord on handwritten digits: 10 clients, under a minute on 2 cores.
	$(BIN)/coterie train experiment=concord_digits

cluster: install  ## A Ray cluster of three nodes on this machine, with the demo as its job: two minutes.
	PATH="$(CURDIR)/$(BIN):$$PATH" deploy/local_cluster.sh

check: export COTERIE_CHECK_BEGAN := $(shell date +%s)
check: install lint  ## lint, and the tests that the changes since main touch, in 90 seconds.
	$(BIN)/python -m tests.check

test test-ci: export PYTHONDONTWRITEBYTECODE :=  # else each process compiles the tests and Coterie
test: install  ## The tests but slow ones and those for CI, in 12 minutes on two cores.
	$(BIN)/python -m pytest $(SPREAD) -m 'not slow and not ci'

test-ci: install  ## The tests but slow ones, as CI runs them: every method in turn, and more kills.
	$(BIN)/python -m pytest $(SPREAD) -m 'not slow'

test-all: install  ## Every test.
	$(BIN)/python -m pytest

lowest: RESOLUTION := lowest-direct  ## make test-ci's tests with the oldest packages that pyproject.toml allows.
newest: RESOLUTION := highest  ## The same with today's newest, also by PYTHON=python3.12.
lowest newest:
	test -x build/$@/bin/python || $(PYTHON) -m venv build/$@
	build/$@/bin/python -m pip install --quiet uv
	build/$@/bin/uv pip install --quiet --python build/$@/bin/python --upgrade \
		--resolution $(RESOLUTION) --editable '.[faiss-cpu,dev]'
	build/$@/bin/python -m pytest $(SPREAD) -m 'not slow' -W ignore

lint: install  ## ruff, mypy strict, import-linter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install  ## The docs site, into build/site; warnings and dead links are errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: install  ## Measure; prints tables as in docs/benchmarks.md.
	$(BIN)/python -m tests.benchmarks

profile: install  ## Where local training's time goes, by method, network and precision.
	$(BIN)/python -m tests.benchmarks.profile_steps

study: install  ## A paper's table: make study STUDY=ccfc_1 SCALE=cpu; without STUDY, all of them.
	nice -n 5 $(BIN)/coterie study $(if $(STUDY),study=$(STUDY) scale=$(SCALE) \
		$(if $(filter smoke,$(SCALE)),,results=docs/results/data))

results: install  ## The tables of docs/results, from the files in docs/results/data.
	$(BIN)/coterie results

gpu:  ## On a machine with GPUs, 40 minutes: tests, throughput, the papers' cells (DEVICE=cpu SCALE=smoke tries it).
	PYTHONPATH=platform:. $(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.gpu device=$(DEVICE) \
		scale=$(if $(filter smoke,$(SCALE)),smoke,paper) minutes=$(MINUTES)

chaos: install  ## Kill processes and damage files at random, an hour; the table is in docs/reliability.md.
	$(BIN)/python -m tests.chaos minutes=60

clean:  ## Remove .venv and caches.
	rm -rf $(VENV) build/lowest build/newest .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
