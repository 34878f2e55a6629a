# `make demo` and `make test` do all the set-up themselves; the rest is for those who work on timebeam.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
WORKERS ?= 3
MINUTES ?= 10
SEEDS ?=
PAIRS ?= 1-40
READY := $(VENV)/ready

# Where it is set, each of the processes that the tests start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-serve demo-streaming demo-machine test test-long test-minimum test-clients test-engines telegraf lint types unit lock bench docs clean

demo: $(READY)
	@$(VENV)/bin/python examples/demo.py

demo-serve: $(READY)
	@$(VENV)/bin/python examples/demo.py --serve

demo-streaming: $(READY)
	@$(VENV)/bin/python examples/demo_streaming.py

demo-machine: $(READY)
	@$(VENV)/bin/python examples/demo_machine.py

# mypy works while tests wait for a service.
test: lint
	@$(MAKE) --no-print-directory -j 2 types unit

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/python -m tests.house.empty_names

types: $(READY)
	$(VENV)/bin/mypy

unit: $(READY)
	$(VENV)/bin/python -m timebeam emulator --build-only
	$(VENV)/bin/pytest -q -n $(WORKERS) --dist worksteal

# Bytes, columns, parsers and options: no Bigtable, no process, no pipeline, no example of Hypothesis.
quick: $(READY)
	$(VENV)/bin/pytest -q -n 2 -m "not emulator and not hypothesis"

# The quick tests with the lowest versions that pyproject.toml allows.
test-minimum:
	$(PYTHON) -m venv $(VENV)/minimum
	$(PYTHON) -m tests.house.minimum > $(VENV)/minimum/constraints.txt
	$(VENV)/minimum/bin/pip install -q --disable-pip-version-check -c $(VENV)/minimum/constraints.txt -e '.[test]'
	$(VENV)/minimum/bin/pytest -q -n 2 -m "not emulator and not process and not hypothesis"

# The tests marked long and all examples of Hypothesis, then the pairs of commands at once that PAIRS names, then random histories of
# whole commands against a model until MINUTES have passed.
# SEEDS=1-1000 runs these histories and nothing else; SEEDS=123 one, which is made smaller if it fails.
test-long: $(READY)
	$(VENV)/bin/python -m timebeam emulator --build-only
ifeq ($(SEEDS),)
	@until=$$(( $$(date +%s) + 60 * $(MINUTES) )); set -x; \
	  $(VENV)/bin/pytest -q -n $(WORKERS) --dist worksteal -m "long or hypothesis" && \
	  $(VENV)/bin/python -m tests.system.pairs --workers $(WORKERS) --seeds $(PAIRS) && \
	  $(VENV)/bin/python -m tests.system.histories --workers $(WORKERS) --until $$until
else
	$(VENV)/bin/python -m tests.system.histories --workers $(WORKERS) --seeds $(SEEDS)
endif

# The server with clients of others, and Telegraf if `make telegraf` has built it; a test whose program is missing
# is skipped and says how to get it.
test-clients: $(READY)
	$(VENV)/bin/python -m timebeam emulator --build-only
	$(VENV)/bin/pytest -q -m clients tests/clients

# Telegraf with the plugins of tests/clients/test_telegraf.py, out of its Go module; needs Go, and minutes.
TELEGRAF := custom,inputs.cpu,inputs.file,inputs.mem,outputs.cloud_pubsub,outputs.influxdb,outputs.influxdb_v2,parsers.influx,serializers.influx,serializers.json,serializers.prometheusremotewrite
telegraf:
	mkdir -p build/telegraf
	cd build/telegraf && { test -f go.mod || go mod init example.com/telegraf; } \
	  && go get github.com/influxdata/telegraf@v1.37.2 \
	  && go build -mod=mod -tags $(TELEGRAF) -o telegraf github.com/influxdata/telegraf/cmd/telegraf

# The commands on all engines, also on Apache Flink, which needs Java; Maven gets its jars, once.
test-engines: $(READY)
	$(VENV)/bin/python -m timebeam emulator --build-only
	$(VENV)/bin/pytest -q -m 'engines or not engines' tests/jobs/engines tests/transforms/test_beam_examples.py

$(READY): requirements-test.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo "timebeam needs Python 3.11 to 3.13 (3.11 is tested): make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV), once; this takes a minute or two ..."
	@$(PYTHON) -m venv $(VENV)
	@if $(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
	  $(VENV)/bin/pip install -q --disable-pip-version-check -r requirements-test.lock && \
	  $(VENV)/bin/pip install -q --disable-pip-version-check --no-deps -e .; \
	else \
	  $(VENV)/bin/pip install -q --disable-pip-version-check -e '.[test]'; \
	fi
	@touch $@

# The newest versions that pyproject.toml allows, written down.
lock:
	$(PYTHON) -m venv $(VENV).lock
	$(VENV).lock/bin/pip install -q -e '.[test]'
	{ sed -n 1p requirements-test.lock; $(VENV).lock/bin/pip freeze --all --exclude pip --exclude-editable; } > $(VENV).lock/new
	mv $(VENV).lock/new requirements-test.lock
	rm -rf $(VENV).lock

# The site, in build/site; a warning is an error.
docs: $(READY)
	$(VENV)/bin/pip install -q --disable-pip-version-check -e '.[docs]'
	$(VENV)/bin/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/site
	@echo build/site/index.html

# All benchmarks, in less than half an hour; their figures in build/bench.json.
bench: $(READY)
	$(VENV)/bin/python -m benchmarks.bench

clean:
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
