# Every target creates the environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
VIEW   := $(VENV)/.view
# This release is what everything was measured with; pyproject.toml allows a range around it.
TORCH  ?= torch==2.13.0
ARGS   ?=
# Processes that share one training, each with its part of the drones (docs/scaling.md).
RANKS  ?= 1
TORCHRUN = $(if $(filter-out 1,$(RANKS)),torchrun --standalone --nproc-per-node $(RANKS) --max-restarts 3)
# The Pythons that make test-pythons tries, by the names that pyenv and distributions give them.
PYTHONS ?= 3.11 3.12 3.13

# Isaac Lab lives in an environment of its own (Python 3.12, 8.5 GB), outside the checkout and shared by all of them. Its
# name follows from what is installed, so a change of versions builds a new one.
ISAAC_KEY    = $(shell (cat third_party/isaac-constraints.txt; sed -n '/^dependencies/,/^]/p' pyproject.toml) | cksum | cut -d' ' -f1)
ISAAC_VENV  ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/navrl/isaac-3.0.0-$(ISAAC_KEY)
ISAAC_PYTHON ?= $(shell for p in python3.12 $$(ls -d "$$(pyenv root 2>/dev/null)"/versions/3.12*/bin/python 2>/dev/null) $(PYTHON); do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && { echo $$p; break; }; done)
ISAAC       = PYTHONPATH=$(CURDIR)/isaac-training $(ISAAC_VENV)/bin/python

.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'
	@echo
	@echo "  ARGS passes overrides on:  make eval ARGS='policy=hover eval.episodes=64'"

train: $(READY)  ## train a policy on this machine; Ctrl-C stops, saves and shows what was learned; RANKS=2 in two processes
	$(BIN)/navrl $(TORCHRUN) train headless=True $(ARGS)

play: $(VIEW)  ## open a page where the policy that comes with the repository flies, live; drag what is in its way
	$(BIN)/navrl play $(ARGS)

watch: $(VIEW)  ## the same page for a run while it trains: make watch RUN=runs/<date>/<time>
	@test -n "$(RUN)" || { echo "error: RUN=: name the run directory, as in: make watch RUN=runs/<date>/<time>"; exit 2; }
	$(BIN)/navrl watch run=$(RUN) $(ARGS)

video: $(VIEW)  ## write a video of a policy's flights: make video POLICY=runs/<date>/<time>/policy.pt
	$(BIN)/navrl video policy=$(or $(POLICY),default) $(ARGS)

play-policy: $(READY)  ## fly the policy that comes with the repository over unseen maps, and draw its flights
	$(BIN)/navrl eval policy=default eval.scenarios=[crossing-350-80,borders-350-80] eval.episodes=512 $(ARGS)

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
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --editable '.[dev,export,bench,view,dashboards]'
	@touch $(VIEW) $(TOOLS)

$(VIEW): $(READY)
	@echo "installing what pages and videos need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --editable '.[view]'
	@touch $(VIEW)

test: $(TOOLS)  ## lint, check types and run the tests (some minutes)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/hadolint docker/*.Dockerfile
	$(BIN)/python -m pytest

test-pythons:  ## run the tests on every supported Python that is installed; says which could not be set up
	@for v in $(PYTHONS); do \
		p=; for c in python$$v $$(ls -d "$$(pyenv root 2>/dev/null)"/versions/$$v*/bin/python 2>/dev/null); do \
			$$c -c 'import sys' 2>/dev/null && { p=$$c; break; }; done; \
		test -n "$$p" || { echo "Python $$v: NOT TESTED, it is not installed"; continue; }; \
		echo "Python $$v: $$p"; \
		$(MAKE) --no-print-directory setup PYTHON=$$p VENV=.venv-$$v > .venv-$$v.log 2>&1 || \
			{ echo "Python $$v: NOT TESTED, its environment could not be built: $$(grep -E '^(error|ERROR|OSError)' .venv-$$v.log | tail -n 1) (.venv-$$v.log)"; continue; }; \
		.venv-$$v/bin/python -m pytest $(ARGS) || failed="$$failed $$v"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

eval: $(READY)  ## fly NavRL's published policy over unseen maps: table, eval.json, pictures
	$(BIN)/navrl eval policy=navrl $(ARGS)

export: $(TOOLS)  ## write ONNX and TorchScript: make export ARGS='checkpoint=policies/default.pt output=policy.onnx'
	$(BIN)/navrl export $(ARGS)

report: $(READY)  ## a page about a run, or several compared: make report ARGS='runs/<date>/<time> runs/<date>/<time>'
	$(BIN)/navrl report $(ARGS)

sweep: $(TOOLS)  ## search for better settings: make sweep ARGS='learning trials=12'; again continues, also elsewhere
	$(BIN)/navrl sweep $(ARGS)

bench: $(TOOLS)  ## measure simulator, learner, saving and collecting on this machine (some minutes)
	$(BIN)/python scripts/bench/env.py
	$(BIN)/python scripts/bench/update.py
	$(BIN)/python scripts/bench/checkpoint.py
	$(BIN)/python scripts/bench/collect.py
	$(BIN)/python scripts/bench/rollouts.py
	$(BIN)/python scripts/bench/view.py

# --- Isaac Lab ----------------------------------------------------------------------------------------------------

setup-isaac:  ## build the environment for sim=isaac, once per machine (Python 3.12, 8.5 GB, about five minutes)
	@test -e $(ISAAC_VENV)/.ready || $(MAKE) --no-print-directory build-isaac
	@echo "Isaac Lab's Python: PYTHONPATH=$(CURDIR)/isaac-training $(ISAAC_VENV)/bin/python"

build-isaac:
	@test -n "$(ISAAC_PYTHON)" || { echo "error: Isaac Lab 3 needs Python 3.12, which was not found;" \
		"install it (apt-get install python3.12-venv, or pyenv install 3.12) or name it: make setup-isaac ISAAC_PYTHON=/path/to/python3.12"; exit 2; }
	@echo "building $(ISAAC_VENV) with Isaac Lab 3.0.0 (8.5 GB, about five minutes)"
	@rm -rf $(ISAAC_VENV) && $(ISAAC_PYTHON) -m venv $(ISAAC_VENV)
	@$(ISAAC_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint third_party/isaac-constraints.txt 'isaaclab[ovphysx]==3.0.0' '.[dev]'
	@$(ISAAC_VENV)/bin/python -m pip uninstall --quiet --yes navrl  # every checkout brings its own, by PYTHONPATH
	@touch $(ISAAC_VENV)/.ready

isaac-python:
	@echo $(ISAAC_PYTHON)

train-isaac: setup-isaac  ## train on Isaac Lab: make train-isaac ARGS='env.num_envs=64'
	$(ISAAC) -m navrl train sim=isaac headless=True $(ARGS)

eval-isaac: setup-isaac  ## fly a policy on Isaac Lab: make eval-isaac ARGS='policy=policies/default.pt eval.episodes=128'
	$(ISAAC) -m navrl eval sim=isaac $(ARGS)

parity: setup-isaac  ## the same flights on Warp and on Isaac Lab: table and picture
	$(ISAAC) -m navrl parity $(ARGS)

bench-engines: setup-isaac  ## steps per second of both engines
	$(ISAAC) scripts/bench/engines.py $(ARGS)

test-isaac: setup-isaac  ## the tests that need Isaac Lab (some minutes)
	$(ISAAC) -m pytest -p no:cacheprovider tests/sim/test_isaac_engine.py tests/task/test_contract.py tests/e2e/test_isaac.py

clean-isaac:  ## remove the environment for sim=isaac
	rm -rf $(ISAAC_VENV)

# --- containers -----------------------------------------------------------------------------------------------------

COMPOSE = env UID=$$(id -u) GID=$$(id -g) docker compose --file docker/compose.yaml

docker-build:  ## build the image for a GPU box (Isaac Sim); IMAGE=cpu for the small one
	$(COMPOSE) build $(or $(IMAGE),gpu)

docker-train:  ## train in the container: make docker-train ARGS='env.num_envs=4096'
	@mkdir -p runs  # or docker would make it, as root
	$(COMPOSE) run --rm $(or $(IMAGE),gpu) $(ARGS)

clean:  ## remove .venv and caches, keep runs/
	rm -rf $(VENV) $(VENV)-3.* .pytest_cache .ruff_cache build *.egg-info isaac-training/*.egg-info

.PHONY: help setup train play watch video play-policy export report sweep test test-pythons eval bench clean setup-isaac build-isaac isaac-python train-isaac eval-isaac parity \
	bench-engines test-isaac clean-isaac docker-build docker-train
