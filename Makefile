PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
STAMP  := $(VENV)/.installed

# Tests with a target of their own.
APART  := --ignore=tests/figures --ignore=tests/recovery --ignore=tests/services --ignore=tests/browser \
  --ignore=tests/notebooks

# Sparks beside that of .venv, each in an environment of its own. Before 4.2, Spark leaves sockets open.
SPARKS := 4.0 4.1 4.3
OLDER  := -W default::pytest.PytestUnraisableExceptionWarning
SITE   := import sysconfig; print(sysconfig.get_path('purelib'))
FEW    := $(addprefix tests/spark/,test_join.py::test_large_strings_and_time_zones_of_the_session \
  test_join_stream.py::test_a_stream_joins_as_sparks_stream_static_join_does \
  pipeline/test_pipeline.py::test_routes_end_apart_and_nothing_is_lost \
  shards/test_join_shards.py::test_shards_agree_with_spark \
  test_sync.py::test_a_stream_goes_on_where_it_stopped test_source.py)

# What another Spark breaks first: a stream, and a pipeline with its routes.
FEWEST := $(filter %_static_join_does %_nothing_is_lost,$(FEW))

.DEFAULT_GOAL := help
.PHONY: help demo test slow figures recovery services-test services-slow spark-matrix spark-matrix-short page-test notebooks chaos chaos-short soak coverage costs lint format hooks bench targets docs pictures dist clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## Enrich a stream of sales on Spark, and compare with Spark's own join
	$(BIN)/semistream demo

test: lint ## Lint, then run every test but the slow ones and those with a target of their own
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(APART)

slow: $(STAMP) ## Run the tests that take more than about ten seconds each
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(APART)

figures: $(STAMP) ## Run all figures of the papers at scale smoke, and check the claims' directions
	$(BIN)/python -m pytest tests/figures

recovery: $(STAMP) ## Kill drivers, executors and workers of a running pipeline, and compare
	$(BIN)/python -m pytest tests/recovery

services-test: $(STAMP) ## Start Kafka, PostgreSQL, MariaDB and an S3 server on loopback, and test with them
	$(BIN)/python -m tests.services install
	$(BIN)/python -m tests.services run -- \
	  $(BIN)/python -m pytest -n 2 --dist worksteal tests/services -m "not iceberg and not slow"

services-slow: $(STAMP) ## The slow ones of them: kills of whole chains, Debezium, Delta, bursts
	$(BIN)/python -m tests.services install
	$(BIN)/python -m tests.services run -- $(BIN)/python -m pytest tests/services -m "slow and not iceberg"

spark-matrix: $(STAMP) $(SPARKS:%=.venv-spark-%/.installed) ## Run the Spark tests on 4.1 with Iceberg, 4.2 with Delta, and 4.3
	$(BIN)/python -m tests.services install
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/spark
	$(BIN)/python -m tests.services run -- $(BIN)/python -m pytest tests/services -m "not iceberg"
	for python in .venv-spark-4.1/bin/python .venv-spark-4.3/bin/python; do \
	  $$python -m pytest -n 2 --dist worksteal $(OLDER) tests/spark || exit; \
	done
	.venv-spark-4.1/bin/python -m tests.services run -- \
	  .venv-spark-4.1/bin/python -m pytest $(OLDER) tests/services -m "iceberg or connectors"
	.venv-spark-4.3/bin/python -m tests.services run -- \
	  .venv-spark-4.3/bin/python -m pytest tests/services -m connectors

spark-matrix-short: $(STAMP) $(SPARKS:%=.venv-spark-%/.installed) ## A few of them on 4.0, 4.1 and 4.3
	$(BIN)/python -m tests.services install
	.venv-spark-4.0/bin/python -m pytest $(OLDER) tests/spark/shards/test_join_shards.py -k agree_with_spark
	.venv-spark-4.3/bin/python -m pytest $(FEWEST)
	.venv-spark-4.1/bin/python -m pytest $(OLDER) $(FEW)
	.venv-spark-4.1/bin/python -m tests.services run -- \
	  .venv-spark-4.1/bin/python -m pytest $(OLDER) tests/services -m "iceberg or connectors"

page-test: $(STAMP) ## Try the live page in Chromium, which is installed if need be
	$(BIN)/python -m tests.browser
	$(BIN)/python -m pytest tests/browser

notebooks: $(STAMP) ## Run the notebooks of examples/; the one with Kafka is in services-test
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/notebooks

chaos: $(STAMP) ## Attack it with faults, kills, hostile files and random joins: MINUTES=2 SEED=1
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),2) --seed $(or $(SEED),1)

# Attacks in turns, and then one pipeline on each kind of Spark: some five minutes.
chaos-short: chaos ## As make chaos, and kills of pipelines, also on a real cluster
	$(BIN)/python -m tests.chaos --cases 1 --seed $(or $(SEED),1) --minutes 30 \
	  --attack 'kills of pipelines, local' --attack 'kills of pipelines, executors' \
	  --attack 'kills of pipelines, standalone' --attack 'pipelines on a full disk'

soak: $(STAMP) ## Run a pipeline for long, and see that nothing grows: MINUTES=60
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),60)

coverage: $(STAMP) ## Run the tests and print which lines they reach; no gate
	$(BIN)/python -m pytest -n 2 --dist worksteal $(APART) --cov

costs: $(STAMP) ## Write the table of counted costs anew, and print what is different
	$(BIN)/python -m pytest -q tests/costs --write-costs

lint: $(STAMP) ## Check style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code and fix what can be fixed by itself
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

hooks: $(STAMP) ## Let git run the checks of make lint before each commit
	$(BIN)/pre-commit install

bench: $(STAMP) ## Measure the engine on this machine
	$(BIN)/python benchmarks/engine.py

# Needs the extra "bench", which "dev" has.
targets: $(STAMP) ## Measure the speed targets side by side with other ways; 15 minutes
	$(BIN)/python benchmarks/targets.py

docs: $(STAMP) ## Build the documentation into build/site; a dead link or a failing example ends it
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/docs
	$(BIN)/python -m sphinx -b html -n -W --keep-going -q -d build/doctrees docs build/site
	@echo "Open build/site/index.html"

pictures: $(STAMP) ## Draw pictures and charts of the documentation anew, from the committed results
	cd docs && ../$(BIN)/python -m site_parts

dist: $(STAMP) ## Build wheel and source archive into dist/
	$(BIN)/python -m build

clean: ## Remove the virtual environment, caches and build products
	rm -rf $(VENV) .venv-spark-* build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*
	find . -path ./.git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# A change of pyproject.toml, and nothing else, installs again.
$(READY): pyproject.toml install.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) sh install.sh
	@touch $@

$(STAMP): $(READY)
	@VENV=$(VENV) sh install.sh dev
	@touch $@

# All that it has not itself, it takes from .venv.
.venv-spark-%/.installed: $(STAMP)
	$(PYTHON) -m venv .venv-spark-$*
	.venv-spark-$*/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark==$*.*'
	@echo "import site; site.addsitedir('$$($(BIN)/python -c "$(SITE)")')" \
	  > "$$(.venv-spark-$*/bin/python -c "$(SITE)")/rest.pth"
	@touch $@
