# What a developer and CI call. Each target does all its own set-up, once; a second run starts at once.
#
#   make demo    fine-tune a small real model over two local ranks, and look at it
#   make test    all tests; as root also those on the lab's hosts
#   make check   ruff, mypy, import-linter, codespell
#   make bench   measure what the documentation promises
#   make soak    the long repetitions
#
# PYTHON=python3.12 picks the interpreter of the virtual environment; TORCH="..." what pip installs where no torch is.
# PYTEST="-k name" adds words to pytest's.

VENV := .venv
RUN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check bench soak setup lab browser clean
.DEFAULT_GOAL := check

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml scripts/make-venv
	@scripts/make-venv $(VENV)
	@touch $@

lab:
	@scripts/install-lab

browser:
	@scripts/install-browser

demo: setup
	@$(RUN)/python examples/demo.py

test: setup lab
	@$(RUN)/python -m pytest $(PYTEST)

soak: setup lab browser
	@$(RUN)/python -m pytest -m soak $(PYTEST)

bench: setup lab
	@$(RUN)/python -m bench

check: setup
	@$(RUN)/ruff check .
	@$(RUN)/ruff format --check .
	@$(RUN)/mypy
	@$(RUN)/lint-imports --no-logo
	@$(RUN)/codespell
	@echo "check: all is well"

clean:
	rm -rf $(VENV) .work .lab .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
