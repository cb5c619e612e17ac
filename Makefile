# make skill   build dist/pytorch-fsdp/ and search it (SOURCE=auto|site|installed, URL=BASE for a mirror)
# make test    everything that CI checks
# make check   formatter, linter, types; make fix mends what they can, and renews the index over the guides
# make bench   side by side with other tools
# make history   read the newest torch release into the history of the API
# make rebuild   build anew, validate with Hermes' own scanner, and write what changed as dist/changes.html
# make packages  what a release holds: archives for both clients with checksums, and a tree for a web server
# make release   put them on GitHub as the release TAG; make released fetches the last one into dist/pytorch-fsdp/
SOURCE ?= auto
URL ?=
HERMES ?= .venv-hermes/bin/hermes
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: skill test check fix bench clean clients history rebuild packages release released

skill: .venv/installed
	$(BIN)/fsdp-skill build --source $(SOURCE) $(if $(URL),--url $(URL)) --out dist/pytorch-fsdp
	$(BIN)/python dist/pytorch-fsdp/scripts/search_docs.py --limit 1 -- "How do I shard a model with fully_shard?"

history: .venv/installed
	$(BIN)/fsdp-skill history

rebuild: .venv/installed $(if $(HERMES),.venv-hermes/installed)
	rm -rf dist/previous dist/changes.html
	test ! -d dist/pytorch-fsdp || cp -R dist/pytorch-fsdp dist/previous
	$(MAKE) skill
	$(BIN)/fsdp-skill validate $(if $(HERMES),--hermes $(HERMES)) dist/pytorch-fsdp
	test ! -d dist/previous || $(BIN)/fsdp-skill diff dist/previous dist/pytorch-fsdp --html dist/changes.html || test $$? = 3

packages: .venv/installed
	test -z "$$TAG" || $(BIN)/fsdp-skill --version | grep -qxF "fsdp-skill, version $${TAG#v}"
	$(BIN)/fsdp-skill package dist/pytorch-fsdp --target hermes --format zip --out dist/hermes-zip
	$(BIN)/fsdp-skill package dist/pytorch-fsdp --target agentskills --format zip --out dist/agentskills-zip
	$(BIN)/fsdp-skill package dist/pytorch-fsdp --target hermes --format well-known --out dist/hermes-well-known
	cat dist/hermes-zip/SHA256SUMS dist/agentskills-zip/SHA256SUMS > dist/SHA256SUMS

release:
	gh release create "$$TAG" --verify-tag --generate-notes dist/*-zip/*.zip dist/SHA256SUMS

released:
	rm -rf dist/released
	gh release download --pattern '*-hermes.zip' --dir dist/released
	rm -rf dist/pytorch-fsdp
	$(PYTHON) -m zipfile --extract dist/released/*-hermes.zip dist

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
