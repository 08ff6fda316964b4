# Every target does the set-up it needs. The first run takes minutes, the next ones seconds.

BIN := .venv/bin
STAMPS := .venv/.ringfeed
LAYERS := sharding pipeline training tools
KERNELS := $(wildcard $(LAYERS:%=%/*/*.c))
MODULES := $(LAYERS:%=ringfeed.%)
PYTEST_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test lint bench notebooks docs dist

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMPS)/package ## .venv with this checkout as `ringfeed`, TensorFlow and Horovod

$(STAMPS)/environment: setup.cfg pyproject.toml .ci/setup.sh
	@.ci/setup.sh environment
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/package: $(STAMPS)/environment setup.py $(KERNELS)
	@.ci/setup.sh package
	@touch $@

demo: setup ## flights and digits: shards, profile, training on two ranks, one HTML page
	@$(BIN)/python -m ringfeed.tools.demo

lint: setup ## ruff, mypy (strict) and doctests
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(MODULES:%=-p %)
	@$(BIN)/python -m tests.helpers.doctests

quick: setup ## before a commit: ruff, mypy, and the tests near what changed since the main branch
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy $(MODULES:%=-p %)
	@$(BIN)/python -m tests.helpers.reach

# The tests start hundreds of Pythons: each would compile the modules that it imports, if none could keep what it made.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup ## all that a contributor must pass: lint and the tests, side by side
	@mkdir -p build
	@$(MAKE) --no-print-directory lint >build/lint.log 2>&1 & lint=$$!; \
	$(BIN)/python -m tests.servers.install && $(BIN)/pytest -n 5 --dist loadfile --no-loadscope-reorder --timeout 900 \
		--junitxml build/junit.xml $(PYTEST_ARGS); tests=$$?; \
	wait $$lint; lint=$$?; [ $$lint -eq 0 ] || tail -n 40 build/lint.log; exit $$((tests ? tests : lint))

bench: setup ## the benchmarks, each a ratio from one run
	@$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

notebooks: setup ## run the notebooks, and write them with their outputs to build/notebooks, also as HTML
	@$(BIN)/python -m nbconvert --log-level ERROR --execute --to notebook --output-dir build/notebooks notebooks/*.ipynb
	@$(BIN)/python -m nbconvert --log-level ERROR --to html build/notebooks/*.ipynb
	@echo build/notebooks/*.html

docs: setup ## the documentation site, strictly checked, to build/site; with the plots of `make notebooks`, run once
	@ls build/notebooks/*.ipynb >/dev/null 2>&1 || $(MAKE) --no-print-directory notebooks
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo build/site/index.html

dist: setup ## sdist and wheel of a release in dist/, checked
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@rm -rf build ./*.egg-info
	@$(BIN)/python -m twine check --strict dist/*
