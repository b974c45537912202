# Every target creates the environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
# This release is what everything was measured with; pyproject.toml allows a range around it.
TORCH  ?= torch==2.13.0
ARGS   ?=

.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo
	@echo "  ARGS passes overrides on:  make eval ARGS='policy=hover eval.episodes=64'"

train: $(READY)  ## train a policy on this machine; Ctrl-C stops, saves and shows what was learned
	$(BIN)/python scripts/train.py headless=True env.num_envs=1024 $(ARGS)

play-policy: $(READY)  ## fly the policy that comes with the repository over unseen maps, and draw its flights
	$(BIN)/python scripts/eval.py policy=policies/default.pt eval.scenarios=[crossing-350-80,borders-350-80] eval.episodes=512 $(ARGS)

setup: $(TOOLS)  ## create .venv with everything needed to train, fly, test and measure

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "error: $$($(PYTHON) --version) found, Python 3.11 to 3.13 needed; name one with: make PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing (the first time this downloads torch and takes some minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $(READY)

$(TOOLS): $(READY)
	@echo "installing what tests, export and benchmarks need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --editable '.[dev,export,bench]'
	@touch $(TOOLS)

test: $(TOOLS)  ## lint and run the tests (some minutes)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest

eval: $(READY)  ## fly NavRL's published policy over unseen maps: table, eval.json, pictures
	$(BIN)/python scripts/eval.py policy=third_party/navrl/navrl_checkpoint.pt $(ARGS)

export: $(TOOLS)  ## write ONNX and TorchScript: make export ARGS='checkpoint=policies/default.pt output=policy.onnx'
	$(BIN)/python scripts/export.py $(ARGS)

bench: $(TOOLS)  ## measure simulator, learner, saving and collecting on this machine (some minutes)
	$(BIN)/python scripts/bench/env.py
	$(BIN)/python scripts/bench/update.py
	$(BIN)/python scripts/bench/checkpoint.py
	$(BIN)/python scripts/bench/collect.py
	$(BIN)/python scripts/bench/rollouts.py

clean:  ## remove .venv and caches, keep runs/
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info isaac-training/*.egg-info

.PHONY: help setup train play-policy export test eval bench clean
