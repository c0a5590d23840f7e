# Every target sets up what it needs. Paths stay relative to this folder, so a checkout path with spaces works.
SHELL := /bin/sh
STAMP := .venv/.ready
PY := .venv/bin/python
PACKAGES := graph agents trainer skills_db sandboxes benchmarks tests
# Interpreter of the virtual environment: the first one that is new enough, or `make setup PYTHON=/path/to/python`.
CANDIDATES := $(if $(PYTHON),"$(PYTHON)",python3.11 python3 python3.12 python3.13)
PIP := $(PY) -m pip install --disable-pip-version-check

.PHONY: help setup run test test-docker test-storm lint bench bench-storm clean

help:
	@echo "make setup            create .venv with pinned dependencies"
	@echo "make run  [ARGS=…]    train, diagnose, edit the harness, gate: python -m graph.run"
	@echo "make test             ruff, mypy, import contracts, pytest"
	@echo "make test-docker      every sandbox, Docker included; needs an engine and bubblewrap"
	@echo "make test-storm       kill a run 20 times at random moments: nothing may be lost"
	@echo "make bench            measure the claims"
	@echo "make bench-storm      the same storm with 200 kills"
	@echo "make clean            remove .venv and caches; runs/ stays"

setup: $(STAMP)
	@echo "ready: make run"

# On stderr, so that `make run ARGS=--json` prints JSON alone. torch first: pip then takes a local CPU build where one is at hand.
# A broken .venv (interrupted, without pip) is rebuilt.
$(STAMP): pyproject.toml constraints.txt
	@for python in $(CANDIDATES); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	    echo 'make setup: needs Python 3.11 or newer, tried $(CANDIDATES); install one or pass PYTHON=/path/to/python' >&2; exit 1; \
	fi; \
	if ! $(PY) -m pip --version >/dev/null 2>&1 && ! "$$found" -m venv --clear .venv >/dev/null 2>&1; then \
	    echo "make setup: '$$found -m venv' failed; install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; \
	fi
	$(PIP) -c constraints.txt torch==2.13.0 >&2
	$(PIP) -c constraints.txt -e ".[dev,llm]" >&2
	@touch $(STAMP)

run: $(STAMP)
	@$(PY) -m graph.run $(ARGS)

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(PACKAGES)
	$(PY) .venv/bin/lint-imports

# One thread per process: results do not depend on the machine, and parallel tests do not fight over cores.
test: export OMP_NUM_THREADS = 1
test: lint
	$(PY) -m pytest -n auto

# Every sandbox must work here: what `make test` skips or leaves out, this demands. The engine is that of DOCKER_HOST, or the
# local one; .ci/run shows how to start a private one. A stale image is rebuilt.
test-docker: export OMP_NUM_THREADS = 1
test-docker: export TEST_SANDBOXES = docker,bubblewrap
test-docker: $(STAMP)
	@$(PY) -m sandboxes.images build || { \
	    echo 'make test-docker: needs a Docker engine: systemctl start docker, or DOCKER_HOST=unix:///path/to/docker.sock' >&2; exit 1; }
	$(PY) -m pytest -n auto -m "docker or not docker" tests/sandboxes $(wildcard tests/trainer/domains/code)

# Faults of the machine, then kill -9 at random moments.
test-storm: export OMP_NUM_THREADS = 1
test-storm: $(STAMP)
	$(PY) -m pytest -n auto -m faults tests/graph
	$(PY) -m tests.e2e.storm --kills 20 $(ARGS)

bench-storm: $(STAMP)
	$(PY) -m tests.e2e.storm --kills 200 $(ARGS)

bench: $(STAMP)
	@$(PY) -m benchmarks $(ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache evotrainer.egg-info
