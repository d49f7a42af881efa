# make reproduce [PRESET=quick|laptop|paper] [ARGS=...] · make test · make lint · make bench
#
# ARGS are options of reproduce.py: ARGS=--overwrite, or ARGS="--only figure3 --overwrite".
# Each target sets up what it needs: .venv with the pinned packages, and the data.

PYTHON ?= python3
PRESET ?= quick
VENV_PYTHON := .venv/bin/python

.PHONY: reproduce test test-scripts test-packages lint bench
.DELETE_ON_ERROR:

reproduce: .venv/installed
	$(VENV_PYTHON) reproduce.py --preset $(PRESET) $(ARGS)

# Two halves that take about as long as each other, one core for each.
HMC_TESTS := $(wildcard tests/test_MNIST_HMC*.py)
test: .venv/installed-dev
	$(MAKE) --jobs 2 test-scripts test-packages

test-scripts test-packages: export OMP_NUM_THREADS ?= 1

test-scripts:
	$(VENV_PYTHON) -m pytest -q $(filter-out $(HMC_TESTS),$(wildcard tests/test_*.py))

test-packages:
	$(VENV_PYTHON) -m pytest -q $(filter-out %__pycache__/,$(wildcard tests/*/)) $(HMC_TESTS)

lint: .venv/installed-dev
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .

bench: .venv/installed
	$(VENV_PYTHON) benchmarks/training.py
	$(VENV_PYTHON) benchmarks/networks.py
	$(VENV_PYTHON) benchmarks/matching.py
	$(VENV_PYTHON) benchmarks/predict.py
	$(VENV_PYTHON) benchmarks/recovery.py
	$(VENV_PYTHON) benchmarks/hmc.py
	$(VENV_PYTHON) benchmarks/samplers.py

.venv/installed: requirements.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "Python 3.10 or newer is needed; name one: make PYTHON=python3.11 ..." >&2; exit 2; }
	@echo "Making .venv and installing requirements.txt (minutes, and some GB where torch brings CUDA)"
	"$(PYTHON)" -m venv .venv
	$(VENV_PYTHON) -m pip install --disable-pip-version-check --requirement requirements.txt
	@touch $@

.venv/installed-dev: .venv/installed requirements-dev.txt
	@echo "Installing requirements-dev.txt"
	$(VENV_PYTHON) -m pip install --disable-pip-version-check --requirement requirements-dev.txt
	@touch $@
