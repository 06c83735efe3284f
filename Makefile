# Two commands do all the set-up on a machine that has Python 3.11 or newer with its headers, a C++ compiler and make:
#   make demo    the main job: a video VAE, broken by stock MPS, repaired by the pack
#   make test    the quick test suite
# `make help` lists the rest.

.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV ?= .venv
TORCH ?=
COMFYUI_PATH ?=
# Workers of the suite. Compiled caches are safe to share between them.
JOBS ?= 2
# More arguments for pytest (ARGS="-k pad -x") and for pip (PIP_ARGS="...").
ARGS ?=
PIP_ARGS ?=

# torch's C++ extensions call `ninja` by name; it is in the venv.
export PATH := $(abspath $(VENV))/bin:$(PATH)

REQUIREMENTS := tests/requirements.txt
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest

# The first of these that is 3.11 or newer and can make a venv.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
CXX_FOUND = $(shell for c in "$${CXX%% *}" c++ g++ clang++; do command -v "$$c" >/dev/null 2>&1 && { echo "$$c"; break; }; done)

# The stamp's name carries a checksum of what is installed: an edited requirements file makes a new stamp.
hash = $(shell cat $(1) 2>/dev/null | cksum | cut -d' ' -f1)

.PHONY: help venv demo test test-full selftest bench generate test-torch comfyui-venv demo-comfyui test-comfyui test-comfyui-full lint clean distclean need-tools

help:  ## list these commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-17s %s\n", $$1, $$2}'

need-tools:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer with venv and pip was found. Install one" \
		"(Debian: apt-get install python3 python3-venv; Mac: brew install python) or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -n "$(CXX_FOUND)" || { echo "error: no C++ compiler was found. Install one" \
		"(Debian: apt-get install g++; Mac: xcode-select --install) or name it in CXX" >&2; exit 1; }
	@p="$(PY)"; test -x "$$p" || p="$(PYTHON)"; h="$$("$$p" -c 'import sysconfig; print(sysconfig.get_path("include"))')"; \
		test -f "$$h/Python.h" || { echo "error: the C headers of $$p are missing ($$h/Python.h). Install them" \
		"(Debian: apt-get install python3-dev) or name a Python that has them: make PYTHON=/path/to/python3" >&2; exit 1; }

STAMP := $(VENV)/.installed-$(call hash,$(REQUIREMENTS))
$(STAMP): | need-tools
	@echo "Setting up $(VENV) (once, one to three minutes) ..."
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PYTHON) tests/set_up.py $(PY) $(PIP_ARGS) -r $(REQUIREMENTS)
	@rm -f $(VENV)/.installed-* && touch $@

venv: $(STAMP)  ## only set up .venv

demo: $(STAMP)  ## the main job: decode a video VAE stock and repaired; writes out/demo/
	@PYTHONPATH=tests $(PY) -m demo $(ARGS)
	@test -z "$(COMFYUI_PATH)" || $(MAKE) --no-print-directory demo-comfyui

demo-comfyui: comfyui-venv  ## the example workflows through a real ComfyUI; `make demo COMFYUI_PATH=...` does both
	@$(COMFYUI_VENV)/bin/python tests/comfyui/examples.py "$(abspath $(COMFYUI_PATH))" out/demo/comfyui

test: $(STAMP)  ## the quick suite
	@$(PY) tests/prepare.py
	@$(PYTEST) -q -n $(JOBS) --dist worksteal $(ARGS)

test-full: $(STAMP)  ## the quick suite and the slower cases
	@$(PY) tests/prepare.py
	@$(PYTEST) -q -n $(JOBS) --dist worksteal -m "not comfyui" $(ARGS)

selftest: $(STAMP)  ## every kernel's self-check for every dtype; ARGS="--json"
	@$(PY) tests/prepare.py
	@PYTHONPATH=tests $(PY) -m softmetal selftest $(ARGS)

# Both print what they measured beside its bar, and fail past it.
bench: $(STAMP)  ## what the software device and the dispatch cost, in processor time
	@$(PY) tests/prepare.py
	@test "$$(uname)" = Darwin || $(PY) tests/softmetal/benchmark.py
	@$(PY) tests/metal_kernels/bench_dispatch.py
	@$(PY) tests/metal_kernels/bench_step.py

generate: $(STAMP)  ## decode with transformers' mixture-of-experts models; ARGS="--faults 2.15 --larger"
	@$(PY) tests/prepare.py
	@PYTHONPATH=tests $(PY) -m generation $(ARGS)

# Another torch in a venv of its own: the device and the core.
TORCH_VENV = .venv-torch-$(TORCH)
test-torch: need-tools  ## device and core on another torch: make test-torch TORCH=2.9.1
	@test -n "$(TORCH)" || { echo "usage: make test-torch TORCH=2.9.1" >&2; exit 2; }
	@mkdir -p .cache && sed 's/^torch==.*/torch==$(TORCH)/' $(REQUIREMENTS) > .cache/requirements-torch-$(TORCH).txt
	@$(MAKE) --no-print-directory VENV=$(TORCH_VENV) REQUIREMENTS=.cache/requirements-torch-$(TORCH).txt venv
	@export PATH="$(abspath $(TORCH_VENV))/bin:$$PATH"; $(TORCH_VENV)/bin/python tests/prepare.py && \
		$(TORCH_VENV)/bin/python -m pytest -q -n $(JOBS) --dist worksteal tests/softmetal tests/metal_kernels tests/conformance $(ARGS)

# A ComfyUI needs 2 GB of packages: in a venv of its own, with the comfy packages at the versions that this checkout asks for.
COMFYUI_VENV := .venv-comfyui
COMFYUI_MARK := comfyui and not full
COMFYUI_REQUIREMENTS := $(REQUIREMENTS) tests/comfyui/requirements.txt
COMFYUI_STAMP = $(COMFYUI_VENV)/.installed-$(call hash,$(COMFYUI_REQUIREMENTS) $(COMFYUI_PATH)/requirements.txt)
$(COMFYUI_VENV)/.installed-%: | need-tools
	@echo "Setting up $(COMFYUI_VENV) (once, about four minutes) ..."
	@test -x $(COMFYUI_VENV)/bin/python || $(PYTHON) -m venv $(COMFYUI_VENV)
	@$(PYTHON) tests/set_up.py $(COMFYUI_VENV)/bin/python $(PIP_ARGS) -r $(REQUIREMENTS)
	@$(PYTHON) tests/set_up.py $(COMFYUI_VENV)/bin/python $(PIP_ARGS) --no-deps torchvision==0.28.0 \
		$$(grep -E '^comfy(ui-frontend-package|ui-embedded-docs|-kitchen|-aimdo)==' "$(COMFYUI_PATH)/requirements.txt")
	@$(PYTHON) tests/set_up.py $(COMFYUI_VENV)/bin/python $(PIP_ARGS) -r tests/comfyui/requirements.txt
	@$(COMFYUI_VENV)/bin/python tests/comfyui/cpu_shims.py
	@rm -f $(COMFYUI_VENV)/.installed-* && touch $@

comfyui-venv:
	@test -f "$(COMFYUI_PATH)/main.py" || { echo "error: COMFYUI_PATH='$(COMFYUI_PATH)' holds no main.py. Give a checkout of" \
		"ComfyUI 0.30 or newer: make test-comfyui COMFYUI_PATH=/path/to/ComfyUI" >&2; exit 2; }
	@$(MAKE) --no-print-directory $(COMFYUI_STAMP)

test-comfyui: comfyui-venv  ## the pack in a real ComfyUI: make test-comfyui COMFYUI_PATH=/path/to/ComfyUI
	@export PATH="$(abspath $(COMFYUI_VENV))/bin:$$PATH"; COMFYUI_PATH="$(abspath $(COMFYUI_PATH))" $(COMFYUI_VENV)/bin/python -m pytest -q -m "$(COMFYUI_MARK)" tests/comfyui $(ARGS)

test-comfyui-full:  ## the same with the full-size Wan 2.2 VAE (minutes, 8 GB of memory)
	@$(MAKE) --no-print-directory test-comfyui COMFYUI_MARK=comfyui

lint: $(STAMP)  ## ruff over everything
	@$(PY) -m ruff check .

clean:  ## remove compiled caches and outputs
	@rm -rf .cache out .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean  ## remove the venvs too
	@rm -rf .venv .venv-*
