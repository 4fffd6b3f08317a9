# make demo: see it work.  make test: the tests.  Each sets up .venv by itself.
# VENV=none uses the Python, torch and pytest that are already installed, and installs nothing.
PYTHON ?= python3
VENV ?= .venv

ifeq ($(VENV),none)
  export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
  python := $(PYTHON)
  ready = $(empty)
  # Whatever other plugins of pytest are installed stay out: their warnings would be errors.
  export PYTEST_DISABLE_PLUGIN_AUTOLOAD := 1
  pytest = $(PYTHON) -m pytest --skip-missing
  processes := $(shell "$(PYTHON)" -c "import xdist" 2>/dev/null && echo -p xdist.plugin --numprocesses 2)
else
  python := $(VENV)/bin/python
  ready = $(VENV)/$(1)
  pytest = $(python) -m pytest
  processes := --numprocesses 2
endif
by_file := $(if $(processes),$(processes) --dist loadfile)
by_test := $(if $(processes),$(processes) --dist loadgroup)

# uv if it is installed, else venv and pip; pinned by constraints.txt either way.
ifneq ($(shell command -v uv 2>/dev/null),)
  make_venv = uv venv --quiet --allow-existing --python "$(PYTHON)" $(VENV)
  install = uv pip install --quiet --python $(python) --constraint constraints.txt
else
  make_venv = "$(PYTHON)" -m venv $(VENV)
  install = PIP_CONSTRAINT=constraints.txt $(python) -m pip install --quiet --disable-pip-version-check
endif

# Folders of tests that train little, without the files in them that start processes.
FAST := guards models objectives paper golden recipes runtime data checkpoints inference evaluators
SLOW := checkpoints/run data/test_loader.py data/test_workers.py

.PHONY: help demo test test-fast test-long check bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

demo: $(call ready,.ready)  ## the included model classifies, is evaluated, fine-tuned and explained (vitrail-demo/)
	$(python) -m vitrail demo

test: $(call ready,.ready-test)  ## a thin slice of all tests, in two processes
	$(pytest) $(by_file)

test-fast: $(call ready,.ready-test)  ## the tests that give most confidence per second
	$(pytest) $(by_file) $(addprefix tests/,$(FAST)) $(addprefix --ignore=tests/,$(SLOW))

test-long: $(call ready,.ready-test)  ## the tests that take long: kills, damage, several processes, all documented commands
	$(pytest) $(by_test) -m long

check: $(call ready,.ready-check)  ## lint and types
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy

bench: $(call ready,.ready-test)  ## speed beside timm and torchvision; loading and memory beside numpy
	$(python) -m vitrail bench --peers
	$(python) -m benchmarks

clean:  ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.ready: pyproject.toml constraints.txt
	$(make_venv)
	$(install) --editable .
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(install) --editable '.[test]'
	touch $@

$(VENV)/.ready-check: $(VENV)/.ready-test
	$(install) --editable '.[check]'
	touch $@
