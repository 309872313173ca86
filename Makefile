# Everything runs in .venv, which `setup` makes and brings up to date by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard src/native/*/*.cpp src/native/*/*.hpp)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup train test test-slow coverage lint format bench sanitize docs clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready  ## Make .venv and install motet with all it needs

$(VENV)/.ready: pyproject.toml setup.py constraints.txt $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,lint,docs]'
	@touch $@

train: setup  ## Train four agents in one world and watch them learn
	$(BIN)/motet train examples/treasure_hunt.toml

test: setup  ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: setup  ## Run the soak, storm and learning tests
	$(BIN)/python -m pytest -m slow

coverage: setup  ## Run the tests and say which lines they run, also in child processes
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[coverage]'
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: setup  ## Check style and types
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Bring the style in order
	$(BIN)/ruff check --fix src tests examples benchmarks
	$(BIN)/ruff format src tests examples benchmarks

bench: setup  ## Measure everything against other designs and libraries
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	for name in replay publication bell plan train collect isolation ray; do $(BIN)/python -m benchmarks $$name; done

sanitize: setup  ## Run the core under the address, undefined and thread sanitizers
	PYTHON=$(BIN)/python bash tests/native/run.sh

docs: setup  ## Build the guides into site/
	$(BIN)/mkdocs build --strict

clean:  ## Remove what was built
	rm -rf build dist site $(VENV) src/*.egg-info src/motet/*.so
