# The commands of this checkout. They need Python 3.11 or newer and make; everything else is installed as needed.
PYTHON ?= python3
BIN := .venv/bin
# Each file goes to one test process. Tests of real parts wait for half of their time: four processes fill two cores.
PYTEST = $(BIN)/python -m pytest tests --dist loadfile --no-loadscope-reorder --numprocesses

.PHONY: help setup demo ui ui-stop quick quick-on kafka-on test test-thorough bill advisories test-simulation test-combinations fuzz drills endurance lint bench docs reference lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{ printf "make %-16s %s\n", $$1, $$2 }'

setup: ## install packages and jars; quick when they are there
	@$(PYTHON) -m holdfast.infra.setup.bootstrap

demo: setup ## run everything on real flights, kill processors, verify; DEMO="--months 12" takes the whole year
	@$(BIN)/holdfast demo $(DEMO)

ui: setup ## start broker, supervisor and UI; they keep running
	@$(BIN)/holdfast up

ui-stop: setup ## stop what `make ui` started
	@$(BIN)/holdfast down

quick: lint ## lint, and tests without real parts, before each commit
	@$(PYTEST) 2 --tier quick

quick-on: ## quick tests on another Python, as PYTHON=python3.13
	@$(BIN)/python -m tests.mechanics.another_python $(PYTHON) $(if $(LOWEST),--lowest)

kafka-on: ## tests on a broker, and the demo, on another Python, as PYTHON=python3.13
	@$(BIN)/python -m tests.mechanics.another_python $(PYTHON) --kafka

test: ## each suite on real parts, 15 minutes, before each merge
	@$(PYTHON) -m holdfast.infra.setup.bootstrap --browser --all-jars
	@$(BIN)/python -m tests.parts.schema_registry
	@$(PYTEST) 4

test-thorough: ## all variants, seeds, drills; PART=1/3 is the first third
	@$(PYTHON) -m holdfast.infra.setup.bootstrap --browser --all-jars
	@$(BIN)/python -m tests.parts.schema_registry
	@$(BIN)/python -m tests.tidy.advisories
	@$(PYTEST) 3 --tier thorough $(if $(PART),--part $(PART))

bill: setup ## write build/bill.json: packages and jars, CycloneDX
	@$(BIN)/python -m tests.tidy.bill_of_materials build/bill.json

advisories: setup ## known holes of the packages; needs a network
	@$(BIN)/python -m tests.tidy.advisories

test-simulation: setup ## 25,000 simulated schedules of crashes and faults
	@$(BIN)/python -m tests.simulation.run --seeds 10000
	@$(BIN)/python -m tests.simulation.run --of timed --seeds 5000
	@$(BIN)/python -m tests.simulation.run --of grouped --seeds 5000
	@$(BIN)/python -m tests.simulation.run --of joined --seeds 5000

test-combinations: setup ## 5,000 topologies under schedules that promise one result
	@$(BIN)/python -m tests.combinations.run --seeds $(or $(SEEDS),5000) --jobs 2

fuzz: setup ## 100,000 fuzzed messages, functions and kills
	@$(BIN)/python -m tests.fuzz.many

drills: setup ## break an installation, verify its repair; DRILLS="4 17"
	@$(BIN)/python -m tests.drills $(DRILLS)

endurance: setup ## snapshots beside kills and verbs; MINUTES=30 SEED=7
	@$(BIN)/python -m tests.spark.endurance.endurance_run --seconds $$(($(or $(MINUTES),30) * 60)) $(if $(SEED),--seed $(SEED))

lint: setup ## ruff, mypy, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: setup ## measure engine and peers, 30 min; BENCH=--small is quick
	@$(BIN)/python -m tests.bench.engine $(BENCH)

docs: setup ## build the site of the docs into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: setup ## write docs/reference from the code
	@$(BIN)/python -m tests.docs.reference

lock: ## write requirements.lock from requirements.in
	@$(PYTHON) -m holdfast.infra.setup.bootstrap --lock

clean: ## stop everything; remove the home folder, keep .venv
	@if [ -x $(BIN)/holdfast ]; then $(BIN)/holdfast down; fi
	@if [ -d .holdfast/demo ]; then HOLDFAST_HOME=.holdfast/demo $(BIN)/holdfast down; fi
	@rm -rf .holdfast
