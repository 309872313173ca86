# Everything runs in .venv, which the targets make and bring up to date by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard src/native/*/*.cpp src/native/*/*.hpp)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # with it every child process compiles motet again

.PHONY: help setup develop train test test-slow coverage lint format bench sanitize reference docs browser wheel clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready  ## Make .venv and install motet with what it needs

develop: $(VENV)/.developed  ## Install what tests, checks and docs need too

SOURCES := pyproject.toml setup.py constraints.txt $(NATIVE)

$(VENV)/.ready: $(SOURCES)
	$(call install,.)

$(VENV)/.developed: $(SOURCES)
	$(call install,.[test$(comma)lint$(comma)docs])
	@touch $@

comma := ,
define install
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '$(1)'
	@touch $(VENV)/.ready
endef

train: setup  ## Train four agents in one world and watch them learn
	$(BIN)/motet train examples/treasure_hunt.toml

test: develop  ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: develop  ## Run the soak, storm and learning tests
	$(BIN)/python -m pytest -m slow

coverage: develop  ## Run the tests and say which lines they run, also in child processes
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[coverage]'
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: develop  ## Check style and types
	$(BIN)/ruff check src tests examples benchmarks tools
	$(BIN)/ruff format --check src tests examples benchmarks tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/wording.py

format: develop  ## Bring the style in order
	$(BIN)/ruff check --fix src tests examples benchmarks tools
	$(BIN)/ruff format src tests examples benchmarks tools

bench: develop  ## Measure everything against other designs and libraries
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	for name in replay publication bell plan learner empower train reproducible collect isolation ray; do $(BIN)/python -m benchmarks $$name; done

sanitize: develop  ## Run the core under the address, undefined and thread sanitizers
	PYTHON=$(BIN)/python bash tests/native/run.sh

reference: develop  ## Write the pages of docs/ that are made from the source
	$(BIN)/python -m motet.cli.reference docs

docs: develop  ## Build the guides into site/
	$(BIN)/mkdocs build --strict

browser:  ## Install the browser that tests of pages use (Debian, as root); without one they are skipped
	apt-get update -qq && apt-get install -y -qq chromium

wheel: setup  ## Build a wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## Remove what was built
	rm -rf build dist site $(VENV) src/*.egg-info src/motet/*.so
