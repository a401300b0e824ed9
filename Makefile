# isojax on a machine that has Python >= 3.11 and make. `make help` lists what there is.
#
# Everything lives in .venv. Stamp files in it remember what is installed, so a second call installs nothing
# (until pyproject.toml changes). Choose another Python with `make quickstart PYTHON=/path/to/python3.12`.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
JOBS ?= 2
SLOW_JOBS ?= 3
MODEL ?= models/smollm2-135m
ARGS ?=
# Python keeps what it has compiled of isojax and its tests, also where the environment says otherwise (as in many
# containers): the tests start hundreds of processes. `make clean` removes it.
unexport PYTHONDONTWRITEBYTECODE

ACCELERATOR := $(if $(shell command -v nvidia-smi 2>/dev/null),cuda,$(if $(wildcard /dev/accel* /dev/vfio/*),tpu))

ifeq ($(origin PYTHON),undefined)
PYTHON := python3
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14
else
CANDIDATES := $(PYTHON)
endif

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-slow test-nightly test-all lint dist format site serve reproduce reproduce-check docs-figures record-flags bench-peers accelerator clean
.DELETE_ON_ERROR:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: $(VENV)/.stamp-run ## install, run the quickstart sweep (or go on with it), fit the law, write the report
	$(BIN)/python -m isojax.launch quickstart --resume $(ARGS)

# By file: its tests share runs, a Ray cluster, and programs that each worker would trace and compile for itself.
# (pytest 9.2 has no groups: xdist 3.8 marks them in the tests' names, which can no longer be changed.)
PYTEST := JAX_PLATFORMS=cpu OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

# A file named by ARGS may hold tests of one kind alone: pytest then finds none of the other, and exits with 5.
NONE_IS_FINE := $(if $(ARGS),|| [ $$? = 5 ])

test: $(VENV)/.stamp-test ## install and run the fast tests, some minutes in all; ARGS="tests/cli/test_cli.py -x" passes on
	$(PYTEST) -n $(JOBS) -m "not slow and not nightly" $(ARGS) $(NONE_IS_FINE)

# Three at once on two cores: many of them wait for processes.
test-slow: $(VENV)/.stamp-test ## whole commands, several processes, Ray, large programs; ARGS as for test
	$(PYTEST) -n $(SLOW_JOBS) -m "slow and not nightly" $(ARGS) $(NONE_IS_FINE)

# One at a time: a program compiled for a TPU takes both cores, and some gigabytes.
test-nightly: $(VENV)/.stamp-test ## what CI leaves out: compiling whole models for chips, training for minutes; ARGS as for test
	$(PYTEST) -n 1 -m nightly $(ARGS) $(NONE_IS_FINE)

test-all: test test-slow ## every test that CI runs

lint: $(VENV)/.stamp-lint ## ruff and pyright; installs nothing that only tests or pages need
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

dist: $(VENV)/.stamp-dev ## build the sdist, and the wheel from it, into dist/, and check their metadata
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

format: $(VENV)/.stamp-lint ## let ruff fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# mkdocs-material prints a notice about MkDocs 2 without the variable.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

site: $(VENV)/.stamp-dev ## build the documentation site in build/site; a warning is an error
	$(MKDOCS) build --strict

serve: $(VENV)/.stamp-dev ## serve the documentation site at http://127.0.0.1:8000 and rebuild it when a file changes
	$(MKDOCS) serve $(ARGS)

reproduce: $(VENV)/.stamp-test ## train the small experiments of docs/reproduction.md, or go on with them; about 80 minutes
	$(BIN)/python benchmarks/reproduce.py run $(ARGS)

reproduce-check: $(VENV)/.stamp-test ## fit the runs that come with isojax again and compare with the tables of docs
	$(BIN)/python benchmarks/reproduce.py check

docs-figures: $(VENV)/.stamp-dev ## draw the pictures, tables and notebooks of README and docs again, from the committed runs
	$(BIN)/python benchmarks/docs_figures.py

record-flags: $(VENV)/.stamp-test ## record the flags of gcloud, kubectl, Ray and SLURM from their --help, for the tests of launch/
	$(BIN)/python -m tests.launch.record_flags

bench-peers: $(VENV)/.stamp-run $(MODEL)/config.json $(foreach peer,transformers tunix trl,$(PEERS)/$(peer)/.stamp) ## install transformers, Tunix and TRL, each in its own environment, and compare their times with isojax's; ARGS="--only step-4x8" passes on
	$(BIN)/python benchmarks/peers/compare.py $(MODEL) $(ARGS)

accelerator: $(VENV)/.stamp-run ## isojax accelerator on this machine's GPU or TPU, whose JAX is installed first; ARGS="--out FOLDER" passes on
	$(if $(ACCELERATOR),$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(ACCELERATOR)]")
	$(BIN)/isojax accelerator $(ARGS)

clean: ## remove caches (the environment and the runs stay)
	rm -rf .pytest_cache .ruff_cache build dist
	find isojax tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-venv:
	@for python in $(CANDIDATES); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "creating $(VENV) with $$("$$python" --version) ($$python)"; \
	        "$$python" -m venv $(VENV) && touch $@ && exit 0; \
	        echo "error: $$python could not create $(VENV); on Debian and Ubuntu install python3-venv" >&2; exit 1; \
	    fi; \
	done; \
	echo "error: isojax needs Python >= 3.11; found $$($(PYTHON) --version 2>/dev/null || echo nothing that runs) as '$(PYTHON)'." >&2; \
	echo "       Name a newer one: make $(or $(MAKECMDGOALS),quickstart) PYTHON=/path/to/python3.12" >&2; exit 1

$(VENV)/.stamp-run: $(VENV)/.stamp-venv pyproject.toml
	@echo "installing isojax into $(VENV) (once; a few minutes)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[report]"
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-venv pyproject.toml
	@echo "installing isojax[test] into $(VENV) (once; a few minutes)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	@touch $@ $(VENV)/.stamp-run

$(VENV)/.stamp-lint: $(VENV)/.stamp-venv pyproject.toml
	@echo "installing isojax[lint] into $(VENV) (once; a few minutes)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[lint]"
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-venv pyproject.toml
	@echo "installing isojax[dev] into $(VENV) (once; a few minutes)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@ $(VENV)/.stamp-lint $(VENV)/.stamp-test $(VENV)/.stamp-run

$(PEERS)/%/.stamp: benchmarks/peers/requirements-%.txt $(VENV)/.stamp-venv
	@echo "installing $* into $(PEERS)/$* (once; a few minutes)"
	$(BIN)/python -m venv $(PEERS)/$*
	$(PEERS)/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

models/smollm2-135m/config.json: $(VENV)/.stamp-run
	$(BIN)/isojax model import smollm2
