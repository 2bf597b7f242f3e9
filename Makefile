# What a developer and CI call. Each target does all its own set-up, once; a second run starts at once.
#
#   make demo    fine-tune a small real model over two local ranks, and look at it
#   make test    all tests; as root also those on the lab's hosts
#   make check   ruff, mypy, import-linter, codespell
#   make bench   measure what the documentation promises
#   make soak    the long repetitions
#   make lane-old      training on the oldest transformers, peft, accelerate and datasets; a part of make test
#   make lane-torch24  training on torch 2.4 as well (Python 3.10, 5.5 GB)
#
# PYTHON=python3.12 picks the interpreter of the virtual environment; TORCH="..." what pip installs where no torch is.
# PYTEST="-k name" adds words to pytest's.

VENV := .venv
RUN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# smoke, equality, packing, that packed rows do not leak, gradients, and that DeepSpeed is what it says
LANE_TESTS := tests/commands/test_smoke.py tests/train/test_equality.py tests/train/test_pack.py tests/train/test_loss.py \
	tests/train/test_speed.py tests/train/test_methods.py 'tests/train/test_zero.py::test_every_stage_trains_as_ddp_does[lora-2]'

.PHONY: demo test check bench soak setup lab browser clean lane-old lane-torch24
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

test: setup lab lane-old
	@$(RUN)/python -m pytest $(PYTEST)

$(VENV)-oldest/.ready: tests/lanes/oldest.txt scripts/make-lane $(VENV)/.ready
	@scripts/make-lane oldest $(VENV)-oldest
	@touch $@

$(VENV)-torch24/.ready: tests/lanes/oldest.txt tests/lanes/torch24.txt scripts/make-lane
	@scripts/make-lane torch24 $(VENV)-torch24
	@touch $@

lane-old: $(VENV)-oldest/.ready
	@$(VENV)-oldest/bin/python -m pytest $(LANE_TESTS)

# no compiled blocks before torch 2.5; ZeRO-3 of DeepSpeed 0.14 asks numactl on CPUs
NOT_TORCH24 := -k "not compiled_blocks and not wish and not -3 and not zero_3 and not other_ranks_stages and not evaluation_and_best \
	and not deepspeeds_settings"

lane-torch24: $(VENV)-torch24/.ready
	@$(VENV)-torch24/bin/python -m pytest $(LANE_TESTS) tests/train/test_zero.py tests/train/test_features.py $(NOT_TORCH24)

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
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-torch24 .work .lab .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
