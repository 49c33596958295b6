# `make demo` and `make test` are all one needs, and `make test-all` before a change lands. Each sets up what it uses.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
SERVED := $(VENV)/served
READY := $(VENV)/ready
CLUSTERED := $(VENV)/clustered
INSTALL := -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: demo serve-demo test test-all coverage docs wheel-test format clean

demo: $(INSTALLED)
	$(BIN)/lmr demo

serve-demo: $(SERVED)
	$(BIN)/lmr serve --demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m 'not slow and not ray'

# The fast tests, then those that take long, then those on Ray one at a time: a cluster fills the cores.
test-all: test $(CLUSTERED)
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m 'slow and not ray'
	$(BIN)/pytest -m ray

# Which lines the tests run; processes that tests start are not counted.
coverage: $(READY)
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m 'not ray' --cov lmr --cov-report term:skip-covered

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict  # the notice of Material about its successor
	@echo "The site is in site/. See it with: $(BIN)/python -m http.server --directory site"

wheel-test: $(READY)
	$(BIN)/python .ci/check_wheel.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What `lmr` needs for research, so that every command but those of the service runs; tests and site need more.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "lmr needs Python 3.11 or newer; choose one with: make PYTHON=python3.11"; exit 1; }
	@echo "Setting up .venv (once; a few minutes on a slow connection) ..."
	@$(PYTHON) -m venv $(VENV)
	@# compiling modules that are never imported would take most of the time
	@$(BIN)/python $(INSTALL) --no-compile --editable '.[bench]'
	@touch $@

$(SERVED): $(INSTALLED)
	@$(BIN)/python $(INSTALL) --editable '.[bench,serve]'
	@touch $@

$(READY): $(INSTALLED)
	@$(BIN)/python $(INSTALL) --editable '.[dev]'
	@# only the photographs of frost in this package are read, so its dependencies are not needed
	@$(BIN)/python $(INSTALL) --no-deps imagecorruptions-imaug
	@touch $@

$(CLUSTERED): $(READY)
	@$(BIN)/python $(INSTALL) --editable '.[ray]'
	@touch $@

clean:
	rm -rf $(VENV) lmr-demo lmr-cost lmr-runs site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
