# make demo: the main job.  make test: the tests.  Each sets up .venv by itself.
PYTHON ?= python3
BIN := .venv/bin

# uv where it is there, else venv + pip; pinned by constraints.txt either way.
ifneq ($(shell command -v uv 2>/dev/null),)
  make_venv = uv venv --quiet --allow-existing --python "$(PYTHON)" .venv
  install = uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
else
  make_venv = "$(PYTHON)" -m venv .venv
  install = PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: help demo test test-long check bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

demo: .venv/.ready  ## the main job: the model in the box classifies, is measured, fine-tuned and explained (vitrail-demo/)
	$(BIN)/vitrail demo

test: .venv/.ready-test  ## the test suite, in two processes
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-long: .venv/.ready-test  ## the tests that take long: damage, kills, limits of time and memory
	$(BIN)/python -m pytest --numprocesses 2 --dist load -m long

check: .venv/.ready-check  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.ready-test  ## side by side with timm, transformers, torchvision: one run, ratios
	$(BIN)/python -m benchmarks

clean:  ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/.ready: pyproject.toml constraints.txt
	$(make_venv)
	$(install) --editable .
	touch $@

.venv/.ready-test: .venv/.ready
	$(install) --editable '.[test]'
	touch $@

.venv/.ready-check: .venv/.ready-test
	$(install) --editable '.[check]'
	touch $@
