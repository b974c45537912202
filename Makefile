# Every target creates the environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# This release is what everything was measured with; pyproject.toml allows a range around it.
TORCH  ?= torch==2.13.0
ARGS   ?=

.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo
	@echo "  ARGS passes overrides on:  make eval ARGS='policy=hover eval.episodes=64'"

setup: $(READY)  ## create .venv with everything needed to fly, test and measure

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "error: $$($(PYTHON) --version) found, Python 3.11 to 3.13 needed; name one with: make PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing (the first time this downloads torch and takes some minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,export,bench]'
	@touch $(READY)

test: $(READY)  ## lint and run the tests (some minutes)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest

eval: $(READY)  ## fly NavRL's published policy over unseen maps: table, eval.json, pictures
	$(BIN)/python scripts/eval.py policy=third_party/navrl/navrl_checkpoint.pt $(ARGS)

bench: $(READY)  ## measure the simulator's speed on this machine (about two minutes)
	$(BIN)/python scripts/bench/env.py $(ARGS)

clean:  ## remove .venv and caches, keep runs/
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info isaac-training/*.egg-info

.PHONY: help setup test eval bench clean
