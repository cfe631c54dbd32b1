# What a person does with this checkout. It needs Python 3.11 or newer and make; the rest is set up as needed.
PYTHON ?= python3
BIN := .venv/bin
# Two test processes; each file goes to one of them.
PYTEST = $(BIN)/python -m pytest tests --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo ui ui-stop quick test test-thorough test-simulation drills lint bench lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

setup: ## install everything into .venv, fetch the jars; quick when it is there
	@$(PYTHON) -m holdfast.infra.bootstrap

demo: setup ## run the whole path on real flights, kill a processor on the way, verify
	@$(BIN)/holdfast demo

ui: setup ## start broker, supervisor and Dagster's UI, and leave them running
	@$(BIN)/holdfast up

ui-stop: setup ## stop what `make ui` started
	@$(BIN)/holdfast down

quick: lint ## lint and what needs no broker, Spark, Dagster or browser, 2 minutes; before each commit
	@$(PYTEST) --tier quick

test: ## each suite on real parts, 15 minutes; what a merge needs
	@$(PYTHON) -m holdfast.infra.bootstrap --browser --all-jars
	@$(PYTEST)

test-thorough: ## all variants, seeds, drills and benches in small, 100 minutes; PART=1/3 is the first third
	@$(PYTHON) -m holdfast.infra.bootstrap --browser --all-jars
	@$(PYTEST) --tier thorough $(if $(PART),--part $(PART))

test-simulation: setup ## 10,000 simulated schedules of crashes, zombies and faults, on all cores
	@$(BIN)/python -m tests.simulation.run --seeds 10000

drills: setup ## break a running installation in one way after the other and watch it mend; DRILLS="4 17" are these
	@$(BIN)/python -m tests.drills $(DRILLS)

lint: setup ## ruff, mypy, and which folder may import which
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: setup ## measure the engine, its peers and its goals on a real broker, half an hour and more; BENCH=--small is quick
	@$(BIN)/python -m tests.bench.engine $(BENCH)

lock: ## write requirements.lock anew from requirements.in
	@$(PYTHON) -m holdfast.infra.bootstrap --lock

clean: ## stop everything and remove all that was made, but not .venv
	@if [ -x $(BIN)/holdfast ]; then $(BIN)/holdfast down; fi
	@rm -rf .holdfast
