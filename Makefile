# The front door. `make demo` trains an agent here; `make test` runs the whole suite. Both make their own environment.
#
#   PYTHON       the interpreter to use (3.11 or newer)
#   TORCH        what to install as torch
#   TORCH_INDEX  another index for torch. On Linux the default torch brings gigabytes of CUDA; the CPU build:
#                make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
#   SEED         the demo's seed

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
SEED ?= 1

PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
PROJECTS = $(wildcard core/pyproject.toml plugins/*/pyproject.toml contrib/*/pyproject.toml tests/testkit/pyproject.toml)
FOLDERS = $(subst ./plugins/trainer-local,./plugins/trainer-local[lora],$(patsubst %/pyproject.toml,./%,$(PROJECTS)))
QUIET = OMP_NUM_THREADS=1 KMP_BLOCKTIME=0

.PHONY: demo test lint clean help

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^$$/q'

$(VENV)/installed: $(PROJECTS)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Ferrule needs Python 3.11 or newer, this is {v.major}.{v.minor}: make PYTHON=python3.12 ...")'
	@echo "making the environment in $(VENV) (some minutes the first time)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@$(PIP) hatchling editables "pytest>=8" "pytest-asyncio>=0.24" "hypothesis>=6.100" ruff
	@$(PIP) --no-build-isolation $(foreach folder,$(FOLDERS),-e "$(folder)")
	@touch $@

demo: $(VENV)/installed
	$(VENV)/bin/ferrule train contrib/gridsim/train.toml --seed $(SEED) --runs runs

test: $(VENV)/installed
	$(QUIET) $(VENV)/bin/python -m pytest -q

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

clean:
	rm -rf $(VENV) .nox .pytest_cache .ruff_cache
