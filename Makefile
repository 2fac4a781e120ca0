# Every target sets up what it needs by itself: .venv from the hashed lock, Java, compiled kernels.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CLASSES := .venv/.classes
# An exported JAVA_HOME that is too old for Spark must not win over a newer Java beside it.
JAVA := JAVA_HOME=$$(tools/java-home)
# Where Python is told to keep no compiled files: each of many processes would compile all of ours,
# and each worker of the tests all tests.
export PYTHONDONTWRITEBYTECODE =
SEED ?=
FORMAT ?=
MINUTES ?= 5

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint bench fuzz wheel man lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock pyproject.toml tools/setup tools/java-home
	@PYTHON=$(PYTHON) tools/setup
	@touch $@

# What starts Spark often starts it from an archive of its classes; where there is none, without.
$(CLASSES): $(READY) src/wireyard/spark/java.py
	@$(JAVA) $(BIN)/python -m wireyard.spark.java || true
	@touch $@

setup: $(READY) $(CLASSES) ## Install the locked packages into .venv, check Java, compile the kernels

demo: $(READY) $(CLASSES) ## Read captured and recorded broker traffic into a lake under build/ and show what is in it
	@rm -rf build/lake-demo
	@$(JAVA) $(BIN)/wireyard run examples/traffic.pcap examples/traffic/shop-*.jmq examples/store/fs370 \
		--lake build/lake-demo

# A whole file goes to one worker, so that its Spark session or decoded corpus is made once; files
# go in the order of tests/conftest.py, not those with few tests, which are the longest, last. There
# is a worker more than cores: each waits a quarter of its time for processes that it has started.
test: $(READY) $(CLASSES) ## Run the tests
	@$(JAVA) $(BIN)/python -m pytest -q -n $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) \
		--dist loadfile --no-loadscope-reorder $(TESTS)

lint: $(READY) ## Check style, types and documents
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m tools.check_docs

bench: $(READY) $(CLASSES) ## Measure speed against Java, memcpy and our own scalar decoder
	@$(JAVA) $(BIN)/python -m benchmarks $(BENCH)

fuzz: $(READY) ## Mutate packets for MINUTES (5), of one FORMAT or all, from SEED (printed when not given)
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(FORMAT),--format $(FORMAT))

wheel: $(READY) ## Build a wheel that holds the compiled kernels, into dist/
	@tools/wheel

man: $(READY) ## Write man pages from the help of the commands, into build/man
	@$(BIN)/python -m tools.man_pages build/man

lock: ## Write requirements.lock anew from pyproject.toml
	@PYTHON=$(PYTHON) tools/lock

clean: ## Remove everything that was made, .venv included
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache spark-warehouse src/*.egg-info
	find src tests tools benchmarks examples peers -name __pycache__ -prune -exec rm -rf {} +
