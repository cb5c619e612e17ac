# make skill   build dist/pytorch-fsdp/ and search it (SOURCE=auto|site|installed, URL=BASE for a mirror)
# make test    everything that CI checks
# make check   formatter, linter, types; make fix mends what they can, and renews the index over the guides
# make bench   side by side with other tools
SOURCE ?= auto
URL ?=
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: skill test check fix bench clean clients

skill: .venv/installed
	$(BIN)/fsdp-skill build --source $(SOURCE) $(if $(URL),--url $(URL)) --out dist/pytorch-fsdp
	$(BIN)/python dist/pytorch-fsdp/scripts/search_docs.py --limit 1 -- "How do I shard a model with fully_shard?"

test: check clients
	$(BIN)/pytest

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fix: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/fsdp-skill index

bench: .venv/bench .venv-seekers/installed
	$(BIN)/python -m benchmarks

.venv/bench: .venv/installed
	$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable ".[torch,dev,bench]"
	touch $@

# The clients that the tests run, each alone: their pins clash with ours.
clients: .venv-hermes/installed .venv-agentskills/installed .venv-scanner/installed

.venv-hermes/installed: CLIENT := hermes-agent==0.19.0
.venv-agentskills/installed: CLIENT := skills-ref==0.1.1
.venv-scanner/installed: CLIENT := cisco-ai-skill-scanner==2.3.2
.venv-seekers/installed: CLIENT := skill-seekers==3.10.0
.venv-%/installed:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP_INSTALL) "$(CLIENT)"
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable ".[torch,dev]"
	touch $@

clean:
	rm -rf dist build .venv .venv-*
