PYTHON  ?= python3
BIN     := .venv/bin
LIBRARY := .venv/library
STAMP   := .venv/stamp
PIP     := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq -c constraints.txt

# Print a message, run a command, and print its time in seconds.
timed = @printf '%s ... ' "$(1)"; start=$$(date +%s); $(2) && echo "$$(($$(date +%s) - start)) s"

.PHONY: help demo .venv test test-matrix test-gpu slow check format lines mutants attack docs clean

help:  ## list the targets
	@grep -hE '^[a-z.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z.-]+):.*## */\1\t/' | expand -t 13

demo: $(LIBRARY)  ## translate a sentence and show its word alignment
	$(BIN)/qkv translate "Wo ist der Bahnhof?" --alignment --save demo.html
	@echo "open file://$(CURDIR)/demo.html in a browser"

.venv: $(STAMP)  ## create the environment with the versions of constraints.txt

# torch is installed first, so that pip selects the build for this platform.
$(LIBRARY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("Python 3.11 or newer is required: set PYTHON, for example make PYTHON=python3.11")'
	$(call timed,creating an environment in .venv,$(PYTHON) -m venv .venv)
	$(call timed,installing torch (a large download),$(PIP) torch==2.13.0)
	$(call timed,installing qkv and its dependencies,$(PIP) -e .)
	@touch $@

$(STAMP): $(LIBRARY)
	$(call timed,installing the dependencies of checks and tests,$(PIP) -e '.[dev]')
	@touch $@

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest

test-matrix: $(STAMP)  ## run the tests under several instruction sets, thread counts and loads
	$(BIN)/python tools/test_matrix.py

test-gpu: $(STAMP)  ## run the parity tests on a GPU
	QKV_DEVICE=cuda $(BIN)/python -m pytest -n 1 tests/families/test_parity.py

slow: $(STAMP)  ## run the slow tests
	$(BIN)/python -m pytest -m slow

check: $(STAMP)  ## check formatting, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy --strict qkv tools tests

format: $(STAMP)  ## format the code and apply lint fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lines: $(STAMP)  ## count the lines of code of the core and of Hugging Face
	$(BIN)/python tools/lines.py

mutants: $(STAMP)  ## mutation testing: change the core, check that the tests fail
	$(BIN)/python tools/mutants.py


attack: $(STAMP)  ## attack the library: ATTACK="--seed 7 --minutes 30 --only kills"
	$(BIN)/python -m tools.attack $(ATTACK)

docs: .venv/docs  ## build the documentation site in site/
	$(BIN)/python -m tools.docs

.venv/docs: $(STAMP)
	$(PIP) -e '.[docs]'
	@touch $@

clean:  ## remove the environment, caches and builds
	rm -rf .venv .*_cache build dist site
	find . -name __pycache__ -prune -exec rm -rf {} +
