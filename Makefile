# What a person does with this checkout. It needs Python 3.11 or newer and make; the rest is set up as needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo ui ui-stop test test-thorough test-simulation drills lint bench lock clean

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

test: ## run all tests
	@$(PYTHON) -m holdfast.infra.bootstrap --browser --all-jars
	@$(BIN)/python -m pytest tests --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-thorough: ## run all tests, with more seeds, every drill and every bench in small
	@$(PYTHON) -m holdfast.infra.bootstrap --browser --all-jars
	@$(BIN)/python -m pytest tests --numprocesses 2 --dist loadfile --no-loadscope-reorder --thorough --all-drills

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
