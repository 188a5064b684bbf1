PYTHON  ?= python3
BIN     := .venv/bin
LIBRARY := .venv/library
STAMP   := .venv/stamp
PIP     := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip
INSTALL := $(PIP) install -qq --no-deps
TORCH    = $(shell grep -o '^torch==[^ ]*' requirements/torch.txt)
LOCKED  := $(INSTALL) --require-hashes

# Print a message, run a command, and print its time in seconds.
timed = @printf '%s ... ' "$(1)"; start=$$(date +%s); $(2) && echo "$$(($$(date +%s) - start)) s"

.PHONY: help demo .venv lock test test-matrix test-gpu slow check format lines mutants attack docs dist clean

help:  ## list the targets
	@grep -hE '^[a-z.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z.-]+):.*## */\1\t/' | expand -t 13

demo: $(LIBRARY)  ## translate a sentence and open the attention explorer on it
	$(BIN)/qkv translate "Wo ist der Bahnhof?"
	$(BIN)/qkv look "Wo ist der Bahnhof?"

.venv: $(STAMP)  ## create the environment with the versions and hashes of requirements/

# pip selects the build of torch for this platform among all that it finds, also in PIP_FIND_LINKS and extra indexes;
# the hashes decide whether it is installed. PyPI's build for Linux needs the libraries of CUDA, other builds do not.
$(LIBRARY): pyproject.toml $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("Python 3.11 or newer is required: set PYTHON, for example make PYTHON=python3.11")'
	$(call timed,creating an environment in .venv,$(PYTHON) -m venv .venv)
	$(call timed,downloading torch (a large file),$(PIP) download -qq --no-deps --dest .venv/torch $(TORCH))
	$(call timed,installing torch,$(LOCKED) --no-index --find-links .venv/torch -r requirements/torch.txt && rm -r .venv/torch)
	@if $(PIP) show torch | grep nvidia > /dev/null; then echo installing the libraries of CUDA; $(LOCKED) -r requirements/cuda.txt; fi
	$(call timed,installing qkv and its dependencies,$(LOCKED) -r requirements/library.txt -r requirements/build.txt && $(INSTALL) --no-build-isolation -e . && $(PIP) -q check)
	@touch $@

$(STAMP): $(LIBRARY)
	$(call timed,installing the dependencies of checks and tests,$(LOCKED) -r requirements/dev.txt && $(PIP) -q check)
	@touch $@

lock: $(STAMP)  ## write requirements/ from pyproject.toml: LOCK="--upgrade" selects new versions
	$(BIN)/python -m tools.release.lock $(LOCK)

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest

test-matrix: $(STAMP)  ## run the tests under several instruction sets, thread counts and loads
	$(BIN)/python tools/test_matrix.py

test-gpu: $(STAMP)  ## run the tests of parity and of CUDA graphs on a GPU
	QKV_DEVICE=cuda $(BIN)/python -m pytest -n 1 tests/families/test_parity.py tests/decode/test_cuda_graphs.py

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
	$(LOCKED) -r requirements/docs.txt
	@touch $@

dist: $(STAMP)  ## build sdist, wheel and bill of materials in dist/; test them in a new environment
	$(BIN)/python -m tools.release.dist

clean:  ## remove the environment, caches and builds
	rm -rf .venv .*_cache build dist site
	find . -name __pycache__ -prune -exec rm -rf {} +
