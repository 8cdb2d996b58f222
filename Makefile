# make demo             the quick start: makes a corpus, trains, translates, prints a table and draws the gates
# make test             the tests on the modern stack
# make test-fast        the quick tests that start no process, in about two minutes on two cores, for use while writing code
# make test-classic     the tests on the classic stack
# make test-latest      the quick tests that start no process on the latest stack
# make test-reliability the tests of killed commands and damaged files in full: every rename, 200 moments, 2,000 bit flips
# make lint             ruff and mypy
# make docs             the documentation site, in build/docs
# make install          the modern stack, with Python 3.12 or 3.11, in .venv
# make install-classic  the classic stack, with Python 3.8 to 3.10, in .venv-classic
# make install-latest   fairseq 0.12.2 with the newest torch, with Python 3.10, in .venv-latest
# make dist             the wheel and the sdist, in dist
# make corenlp          Stanford CoreNLP, for the extraction of relations, where stanza looks for it: in CORENLP_HOME, or
#                       ~/stanza_corenlp; needs Java 17 and Maven
# make chromium         Debian's Chromium, in which a test looks at pages; as root, else that test is skipped
# make clean            removes the environments, the demo and all caches
# demo, test, test-*, lint, docs and dist install what they need. Variables: MODERN_PYTHON, CLASSIC_PYTHON and
# LATEST_PYTHON name the interpreters, DEMO_ARGS=--short makes the demo a trial, PYTEST_ARGS is handed to pytest.
VENV := .venv
VENV_CLASSIC := .venv-classic
VENV_LATEST := .venv-latest
CORENLP_HOME ?= $(HOME)/stanza_corenlp
PYTEST_ARGS ?= -n 2 --dist loadgroup -rfEs
DEMO_ARGS ?=

# Each of the hundreds of processes of the tests would compile again what the set-up did not import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install install-classic install-latest corenlp chromium demo test test-fast test-classic test-latest
.PHONY: test-reliability lint docs dist clean

help:
	@sed -n '/^#/!q; s/^# //p' Makefile

install:
	@tools/setup_venv.sh modern $(VENV) $(MODERN_PYTHON)

install-classic:
	@tools/setup_venv.sh classic $(VENV_CLASSIC) $(CLASSIC_PYTHON)

install-latest:
	@tools/setup_venv.sh latest $(VENV_LATEST) $(LATEST_PYTHON)

corenlp:
	@tools/get_corenlp.sh "$(CORENLP_HOME)"

chromium:
	@tools/get_chromium.sh

demo: install
	$(VENV)/bin/python examples/quickstart/run.py $(DEMO_ARGS)

test: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(PYTEST_ARGS)

test-fast: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(PYTEST_ARGS) --fast --dist loadfile

test-classic: install-classic
	OMP_NUM_THREADS=1 $(VENV_CLASSIC)/bin/python -m pytest $(PYTEST_ARGS)

test-latest: install-latest
	OMP_NUM_THREADS=1 $(VENV_LATEST)/bin/python -m pytest $(PYTEST_ARGS) --fast --dist loadfile

test-reliability: install
	OMP_NUM_THREADS=1 RELIABILITY=full $(VENV)/bin/python -m pytest $(PYTEST_ARGS) tests/reliability

lint: install
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy

dist: install
	$(VENV)/bin/python -m build --no-isolation

docs: install
	$(VENV)/bin/sphinx-build -W --keep-going -q -b html -c docs . build/docs

clean:
	rm -rf $(VENV) $(VENV_CLASSIC) $(VENV_LATEST) quickstart-demo build dist *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -r {} +
