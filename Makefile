# Two commands from a fresh clone, with Python >= 3.11 and nothing else: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
# One process for each core, one thread in each; a file's tests stay together, for what they share.
# A process that dies ends in a failure with its test's name: pytest-xdist, which would start another, may then wait for ever.
TESTS := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist loadfile --max-worker-restart 0

.PHONY: demo test test-fast lint types format clean

demo: .venv/.installed
	$(BIN)/pyramidvit demo

test: lint types
	$(TESTS)

test-fast: .venv/.installed-dev
	$(TESTS) -m "not slow"

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-dev
	$(BIN)/pyright

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pyramidvit needs Python 3.11 or newer; set PYTHON=python3.11 or the like.")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

# torch and torchvision are named together, so that pip picks two that belong together and no second torch.
.venv/.installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet torch torchvision --editable .
	touch $@

.venv/.installed-dev: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet torch torchvision --editable ".[dev]"
	touch $@ .venv/.installed
