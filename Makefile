# `make` shows this list; each target builds .venv first when it is missing or out of date.
PYTHON ?= python3
RUN := .venv/bin/python
# Compiled modules are kept, out of everybody's way: a process that compiles all it imports takes
# seconds to start, and the tests start hundreds.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.bytecode
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo up test check bench chaos lock clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 10

setup: ## build .venv from the lock (instant when nothing changed)
	@$(PYTHON) scripts/setup.py

demo: setup ## broker, API and Spark: sample media to transcripts
	@$(RUN) examples/demo.py

up: setup ## the same, and it stays up until Ctrl-C
	@$(RUN) examples/demo.py --forever

test: check ## everything that proves it
	@$(RUN) -m pytest -n 3 --no-loadscope-reorder

check: setup ## lint, types, layers
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@.venv/bin/lint-imports --no-cache

bench: setup ## speed and memory, as ratios in one run
	@$(RUN) -m benchmarks

chaos: setup ## the longer trials: kills, long media
	@$(RUN) -m pytest chaos --timeout=600
	@HYPOTHESIS_PROFILE=explore $(RUN) -m pytest tests -k "model or any_order" --timeout=600

lock: setup ## resolve the lock files anew
	@PYTHONPATH=.boot/uv $(PYTHON) scripts/lock.py

clean: ## remove what make built
	rm -rf .boot .bytecode .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
