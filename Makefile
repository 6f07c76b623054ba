# The same targets for everyone. Each installs what it needs and is safe to run twice.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := bftrainer milp trainers slurm_plugins lsf_adapters scripts tests

FRESH := --hypothesis-profile=fresh $$($(BIN)/python scripts/proofs.py --fresh)

.PHONY: help venv system demo test test-kernel test-site test-e2e test-pure test-long test-shard newest proofs lint
.PHONY: promises promises-full release-check bench horovod sbom audit site dist bundle clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# torch first and pinned: a range would pull several GB of CUDA packages.
$(BIN)/.installed: setup.cfg constraints.txt
	PYTHON=$(PYTHON) scripts/install_system.sh venv
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[torch,mpi,huggingface,lightning,demo,study,gurobi,mip,postgresql,dev]'
	touch $@

venv: $(BIN)/.installed  ## create .venv with everything development needs

system:  ## install Slurm, MUNGE and nftables for the test clusters (Debian, root or sudo)
	scripts/install_system.sh slurm
	-scripts/install_system.sh promtool

demo: venv  ## three real trainers on the embedded batch system, about a minute
	$(BIN)/bftrainer demo --out demo-out

# What only computes and waits for nothing runs beside the end-to-end run, and then beside the
# others, which also wait for schedulers and processes. No nice: it would starve on a busy machine.
BY_FILE := --dist loadfile --no-loadscope-reorder
PURE := tests/unit tests/property tests/simulate tests/fuzz
# Of processor time, without what venv and system install.
CPU_MINUTES := 12
test: venv system  ## all tests but the long ones, a real Slurm among them
	$(BIN)/python scripts/cpu_budget.py --minutes $(CPU_MINUTES) -- \
		$(MAKE) -j 2 --output-sync=target --no-print-directory test-site test-pure

# What fails beside others and passes alone has a defect all the same: it is run once more, alone,
# only to tell the two apart. Tests wait for two thirds of their time: four share two processors.
SITE := -m "not long" -o cache_dir=.pytest_cache/site
ALONE := --last-failed --last-failed-no-failures none
AGAIN := echo "=== FAILED beside others; the same tests once more, alone. The run is red. ==="
test-site: test-e2e
	$(BIN)/python -m pytest $(SITE) -n 4 $(BY_FILE) $(PURE:%=--ignore=%) --ignore=tests/e2e \
		|| { $(AGAIN); $(BIN)/python -m pytest $(SITE) $(ALONE) $(PURE:%=--ignore=%) \
			--ignore=tests/e2e; exit 1; }

test-e2e: venv system
	$(BIN)/python -m pytest -m "not long" tests/e2e

QUIET := -m "not long" -o cache_dir=.pytest_cache/pure
test-pure: venv
	$(BIN)/python -m pytest $(QUIET) -n 2 $(BY_FILE) $(PURE) \
		|| { $(AGAIN); $(BIN)/python -m pytest $(QUIET) $(ALONE) $(PURE); exit 1; }

test-kernel: venv system  ## the tests of the kernel alone (ARCHITECTURE.md)
	$(BIN)/python -m pytest --kernel -m "not long" -o cache_dir=.pytest_cache/kernel -n 2 $(BY_FILE)

LONGER := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[trackers,notebooks,site]'

test-long: venv system  ## the long proofs, and ten times fresh examples for the property tests
	scripts/install_system.sh packages
	$(LONGER)
	$(BIN)/python -m pytest -m long -n 2 $(BY_FILE)
	for i in {1..10}; do $(BIN)/python -m pytest -n 2 $(BY_FILE) $(FRESH) || exit 1; done

SHARD ?= 0/1
test-shard: venv system  ## part SHARD=K/N of the long proofs, fresh examples once
	scripts/install_system.sh packages
	$(LONGER)
	$(BIN)/python -m pytest -m long -n 2 $(BY_FILE) --shard $(SHARD)
	$(BIN)/python -m pytest -n 2 $(BY_FILE) --shard $(SHARD) $(FRESH)

# What tomorrow's users get without constraints.txt: before each release, and its result is recorded.
# TORCH_INDEX is an index of torch alone (https://download.pytorch.org/whl/cpu: 0.2 GB, not 3.0).
NEWEST_VENV := build/newest-venv
NEWEST := $(NEWEST_VENV)/bin/python
NEWEST_PIP := $(NEWEST) -m pip install -q --disable-pip-version-check --upgrade
TORCH_INDEX ?=
newest:  ## the newest release of each dependency, in an environment of its own, and the tests with it
	PYTHON=$(PYTHON) scripts/install_system.sh venv
	rm -rf $(NEWEST_VENV) && $(PYTHON) -m venv $(NEWEST_VENV)
	$(NEWEST_PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(NEWEST_PIP) --upgrade-strategy eager -e '.[torch,mpi,huggingface,lightning,demo,study,gurobi,mip,postgresql,dev]'
	$(NEWEST) -m pip freeze --exclude-editable | tee build/newest.txt
	$(NEWEST) -m pytest -m "not long" -o cache_dir=.pytest_cache/newest -n 2 $(BY_FILE) $(PURE) tests/elastic

proofs: venv  ## when each long proof last ran, and with what result
	$(BIN)/python scripts/proofs.py

lint: venv  ## the house rules as tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 bftrainer/elastic bftrainer/ground trainers/profiler  # of users, who may have it
	$(BIN)/lint-imports
	$(BIN)/python scripts/readability.py

sbom: venv  ## dist/sbom.json: what the product is installed with, as CycloneDX
	mkdir -p dist
	$(BIN)/python scripts/dependencies.py sbom --out dist/sbom.json

audit: venv  ## compare constraints.txt with BFTRAINER_ADVISORIES, an offline copy of OSV's advisories
	$(BIN)/python scripts/dependencies.py audit --pinned constraints.txt

# In an environment of its own, without the product and torch.
SITE_VENV := build/site-venv
SITE_DIR := dist/site
site:  ## dist/site: the documentation as pages, to be opened as files or served
	PYTHON=$(PYTHON) scripts/install_system.sh venv
	test -x $(SITE_VENV)/bin/mkdocs || { $(PYTHON) -m venv $(SITE_VENV) && $(SITE_VENV)/bin/python \
		-m pip install -q --no-compile --disable-pip-version-check -c constraints.txt mkdocs-material; }
	$(SITE_VENV)/bin/mkdocs build -f packaging/site/mkdocs.yml -d $(abspath $(SITE_DIR))

dist:  ## dist/: sdist and wheel, the same bytes for the same commit
bundle:  ## dist/: an archive to install where there is no network
dist bundle:
	PYTHON=$(PYTHON) scripts/install_system.sh venv
	packaging/build.sh $@

promises: venv system  ## what README promises, measured in an hour; fails if it does not hold
	$(BIN)/python scripts/promises.py --again docs/results/short

promises-full: venv system  ## the same in full: docs/results, README's table and docs/results.md
	$(BIN)/python scripts/promises.py --full

release-check: venv  ## before a release: is each promise measured, and not too long ago?
	$(BIN)/python scripts/promises.py --check

bench: venv system  ## every paper and every benchmark in full, results in bench-out/ and docs/
	$(BIN)/python scripts/write_reproductions.py --run
	$(BIN)/python scripts/promises.py --full --all

horovod: venv  ## build Horovod against the torch of .venv, install it there, run its tests
	scripts/build_horovod.sh $(VENV)
	$(BIN)/python -m pytest tests/elastic/test_horovod.py tests/elastic/test_horovod_saving.py
	$(BIN)/python -m pytest -m "long or not long" -k Horovod tests/integration/fleet/test_runtime_conformance.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist demo-out bench-out *.egg-info .pytest_cache .mypy_cache .ruff_cache
