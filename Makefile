# The commands of this checkout. They need Python 3.11 or newer and make; everything else is installed as needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo ui ui-stop quick test test-thorough test-simulation drills lint bench lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{ printf "make %-16s %s\n", $$1, $$2 }'

setup: ## install packages and jars; quick when they are there
	@$(PYTHON) -m holdfast.infra.bootstrap

demo: setup ## run everything on real flights, kill a processor, verify
	@$(BIN)/holdfast demo

ui: setup ## start broker, supervisor and UI; they keep running
	@$(BIN)/holdfast up

ui-stop: setup ## stop what `make ui` started
	@$(BIN)/holdfast down

quick: lint ## lint, and tests without real parts, before each commit
	@$(BIN)/python -m pytest tests/unit tests/tidy tests/docs --numprocesses 2

test: ## all suites on real parts, before each merge
	@$(PYTHON) -m holdfast.infra.bootstrap --browser --all-jars
	@$(BIN)/python -m pytest tests --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-thorough: ## all variants, seeds and drills, before a release
	@$(PYTHON) -m holdfast.infra.bootstrap --browser --all-jars
	@$(BIN)/python -m pytest tests --numprocesses 2 --dist loadfile --no-loadscope-reorder --thorough --all-drills

test-simulation: setup ## 10,000 simulated schedules of crashes and faults
	@$(BIN)/python -m tests.simulation.run --seeds 10000

drills: setup ## break an installation, verify its repair; DRILLS="4 17"
	@$(BIN)/python -m tests.drills $(DRILLS)

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: setup ## measure engine and peers, 30 min; BENCH=--small is quick
	@$(BIN)/python -m tests.bench.engine $(BENCH)

lock: setup ## write requirements.lock from requirements.in
	@env -u PIP_FIND_LINKS $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	  --output-file requirements.lock requirements.in

clean: ## stop everything; remove the home folder, keep .venv
	@if [ -x $(BIN)/holdfast ]; then $(BIN)/holdfast down; fi
	@rm -rf .holdfast
