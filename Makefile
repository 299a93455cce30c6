# Seriatim: what can be done here. `make help` lists it. `make demo` and `make test` need nothing but Python >= 3.11.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SYNCED := $(VENV)/.synced

# Tests and demos start hundreds of interpreters. If Python keeps compiled modules, each of them starts in half the time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: changelog help env demo demo-orders demo-delayed test test-slow test-faults test-spark check lint types contracts proto proto-check crds crds-check docs-check tools bench-smoke bench-drain bench-consume faults sim clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(SYNCED): pyproject.toml uv.lock api/pyproject.toml broker/pyproject.toml client/pyproject.toml e2e/pyproject.toml local/pyproject.toml operator/pyproject.toml spark-on-k8s/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Seriatim needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	tools/environment.sh $(VENV) $(PYTHON)
	@touch $@

env: $(SYNCED) ## make the environment in .venv from the lock (VENV=.venv-other PYTHON=python3.13: another one, for any target)

demo: $(SYNCED) ## a year of flights through six brokers that are killed, frozen and cut off (QUICK=1: a part; SEED=n: that plan; LATENCY=25: links take 25 ms each way)
	$(BIN)/python -m e2e.demo

demo-orders: $(SYNCED) ## flights by key, 16 consumers that fail and are killed, brokers too, parked keys, dead letters (QUICK=1; SEED=n; LATENCY=25)
	$(BIN)/python -m e2e.demo_orders

demo-delayed: $(SYNCED) ## 10,000 delayed messages are fired while three brokers are killed, and 500 are called back (QUICK=1; SEED=n; LATENCY=25)
	$(BIN)/python -m e2e.demo_delayed

test: $(SYNCED) ## all tests that need nothing but Python, package by package
	$(BIN)/python -m tools.run_tests

test-slow: $(SYNCED) ## the tests that take minutes (disks, whole clusters)
	$(BIN)/python -m tools.run_tests --kind slow $(TESTS)

NEWEST ?= $(firstword $(foreach version,3.14 3.13 3.12,$(shell command -v python$(version))) $(PYTHON))

.PHONY: night
night: $(SYNCED) ## what runs at night and before a release: make test with the newest Python (NEWEST=python3.14), all profiles of the simulator, all of Spark, two hours of faults and simulated worlds, all of Kubernetes
	$(MAKE) test VENV=.venv-newest PYTHON=$(NEWEST)
	$(MAKE) sim-profiles
	$(MAKE) test-spark
	$(MAKE) demo-spark
	$(MAKE) faults-spark
	$(MAKE) faults MINUTES=60
	$(MAKE) sim-swarm MINUTES=60
	$(MAKE) mutated
	$(MAKE) e2e-all

.PHONY: mutated
mutated: $(SYNCED) ## mutated inputs for every decoder of bytes that others wrote, each in a process of its own, in some minutes (INPUTS=1000000)
	$(BIN)/python -m tools.mutated_bytes $(if $(INPUTS),--inputs $(INPUTS))

test-faults: $(SYNCED) ## kill, freeze and cut a whole cluster of processes under checked traffic, and a quick demo
	$(BIN)/python -m tools.run_tests --kind faults --package e2e $(TESTS)

ifneq ($(KAFKA),)
SPARK ?= 4.2# the Spark for which there is a source of Kafka
endif
SPARK_VENV := .venv-spark$(if $(SPARK),-$(SPARK))
SPARK_SYNCED := $(SPARK_VENV)/.synced

$(SPARK_SYNCED): pyproject.toml uv.lock spark-on-k8s/pyproject.toml | $(SYNCED)
	@$(BIN)/python -m tools.check_java
	@echo "making $(SPARK_VENV); the first time pip's package of Spark is downloaded (456 MB) and built, for some minutes"
	UV_PROJECT_ENVIRONMENT=$(SPARK_VENV) $(BIN)/uv sync --frozen --quiet --group spark --python $(BIN)/python
	$(if $(SPARK),$(BIN)/uv pip install --quiet --python $(SPARK_VENV)/bin/python "pyspark==$(SPARK).*")
	@touch $@

test-spark: $(SPARK_SYNCED) ## the tests that need Spark; they make an environment of their own (needs Java 17; SPARK=4.2: on the newest 4.2; QUICK=1: without the slow ones)
	@$(BIN)/python -m tools.check_java
	$(SPARK_VENV)/bin/python -m tools.run_tests --kind spark$(if $(QUICK),-quick) --package spark-on-k8s $(TESTS)

.PHONY: demo-spark
demo-spark: $(SPARK_SYNCED) ## the flights through Spark into Parquet, a table and a second topic, while drivers, tasks and brokers are killed (QUICK=1; SEED=n; needs Java 17)
	@$(BIN)/python -m tools.check_java
	$(SPARK_VENV)/bin/python -m e2e.demo_spark

.PHONY: faults-spark
faults-spark: $(SPARK_SYNCED) ## workers, brokers and drivers are killed while Spark writes to topics (RUNS=200; SEED=n; MINUTES=n; needs Java 17)
	@$(BIN)/python -m tools.check_java
	$(SPARK_VENV)/bin/python -m e2e.spark_faults

.PHONY: bench-spark
bench-spark: $(SPARK_SYNCED) ## how fast Spark reads and writes a topic, beside Spark's own limit (QUICK=1: a tenth of it; KAFKA=1: and beside Kafka, which Maven gets, 60 MB; needs Java 17)
	@$(BIN)/python -m tools.check_java
	$(if $(KAFKA),$(BIN)/python -m tools.kafka.fetch)
	$(SPARK_VENV)/bin/python -m e2e.bench.spark $(if $(QUICK),--quick) $(if $(KAFKA),--kafka)

check: lint types contracts proto-check crds-check chart-check docs-check ## everything that reads the code without running it

lint: $(SYNCED) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SYNCED) ## mypy --strict, and what pyright knows of the methods that seriatim.sync makes
	$(BIN)/mypy api/src broker/src client/src local/src operator/src spark-on-k8s/src e2e sim tools client/tests/typed
	$(BIN)/uv run --frozen --isolated --only-group pyright basedpyright --project client/tests/typed --pythonpath $(BIN)/python

contracts: $(SYNCED) ## who may import whom
	$(BIN)/lint-imports

proto: $(SYNCED) ## generate seriatim_api.v1 from api/proto
	tools/proto.sh

proto-check: $(SYNCED) ## fail if the generated code is stale
	tools/proto_check.sh

crds: $(SYNCED) ## generate the Kubernetes definitions in crds/ and the page about them from the models
	$(BIN)/seriatim operator crds --output crds
	$(BIN)/python docs/generate_crds.py
	$(BIN)/python -m tools.chart

crds-check: $(SYNCED) ## fail if they are stale
	$(BIN)/seriatim operator crds --output crds --check
	$(BIN)/python docs/generate_crds.py --check

docs-check: $(SYNCED) ## fail if a generated page is stale, a link leads nowhere, or a place has another version
	$(BIN)/python -m tools.version --check
	$(BIN)/python docs/generate_errors.py --check
	$(BIN)/python docs/generate_metrics.py --check
	$(BIN)/python -m tools.check_links

changelog: $(SYNCED) ## print what newsfragments/ adds to the changelog (RELEASE=0.3.0: write it into CHANGELOG.md, and remove them)
	$(BIN)/towncrier build $(if $(RELEASE),--yes,--draft) --version $(or $(RELEASE),$$($(BIN)/python -m tools.version))

tools: ## build etcd 3.6 into .tools/bin (needs Go)
	tools/etcd/build.sh

.PHONY: promtool
promtool: ## build promtool into .tools/bin, with which the chart's alerts are tested (needs Go)
	tools/prometheus/build.sh

.PHONY: words
words: ## hold pages, docstrings, comments, messages and descriptions against the word list (needs Go and a C compiler)
	tools/vale/build.sh
	.tools/bin/vale --output line --glob='!{**/*_pb2*,**/node_modules/**}' $(WORDS)

WORDS := README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md newsfragments docs crds templates values.yaml Chart.yaml api/proto api/src broker/src client/src local/src operator/src spark-on-k8s/src e2e sim tools images

.PHONY: bench
bench: $(SYNCED) ## single messages, fixed rates, bulk, an idle cluster, gaps at faults, delayed messages, in six minutes (QUICK=1: a quarter; ONLY="start one_in_flight"; LATENCY=25: links take 25 ms each way)
	$(BIN)/python -m e2e.bench.run $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

bench-smoke: $(SYNCED) ## four of these: throughput, latency and the gap at kill -9, in a minute
	$(BIN)/python -m e2e.bench.run --smoke

.PHONY: bench-compare
bench-compare: $(SYNCED) ## BASE=commit: the same workloads on that commit and on this checkout in turns, A B A B, with ratios (ROUNDS=2; QUICK=1; ONLY=...)
	@test -n "$(BASE)" || { echo "say with which commit to compare: make bench-compare BASE=main~5" >&2; exit 2; }
	$(BIN)/python -m e2e.bench.compare $(BASE) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

.PHONY: bench-peers
bench-peers: $(SYNCED) ## Seriatim, Kafka and NATS in one run, with two copies and the same flushes (QUICK=1; needs a JDK 17, Maven and Go; fetches 60 MB and builds NATS; DELAYED=1: delayed messages, beside NATS and RabbitMQ; needs Go and Debian's rabbitmq-server)
	$(if $(DELAYED),,@$(BIN)/python -m tools.check_java)
	$(if $(DELAYED),tools/rabbitmq/build.sh,$(BIN)/python -m tools.kafka.fetch)
	tools/nats/build.sh
	$(BIN)/python -m e2e.bench.peers.$(if $(DELAYED),delayed,run) $(if $(QUICK),--quick)

.PHONY: bench-timeline
bench-timeline: $(SYNCED) ## where the time of one message goes, hop by hop, with a picture, in half a minute (SIX=1: six brokers and not two; QUICK=1)
	$(BIN)/python -m e2e.bench.timeline.run $(if $(SIX),--six) $(if $(QUICK),--quick)

bench-drain: $(SYNCED) ## old messages read by one consumer, and a lost disk made good, in a minute (QUICK=1: a tenth of it)
	$(BIN)/python -m e2e.bench.drain $(if $(QUICK),--quick)

bench-consume: $(SYNCED) ## one partition shared by key among consumers, and take-overs of their keys, in minutes (QUICK=1: a tenth of the messages)
	$(BIN)/python -m e2e.bench.consume $(if $(QUICK),--quick)

faults: $(SYNCED) ## every fault on real processes, judged (QUICK=1: a choice; MINUTES=60: a night; SEED=n: again; ONLY="kill": some; RETENTION=4: topics keep seconds; PUBLISH=1: a program publishes, too; FEATURES=1: growth, rewinds, skips and more beside the load; LATENCY=25: links take 25 ms each way; MEMBERS=3: broker groups of three)
	$(BIN)/python -m e2e.faults

sim: $(SYNCED) ## one simulated world of complete brokers: make sim SEED=7 STEPS=2000 (batches sent; TRACE=1: its story)
	$(BIN)/python -m sim --seed $(or $(SEED),1) --steps $(or $(STEPS),2000) $(if $(TRACE),--trace)

sim-swarm: $(SYNCED) ## simulated worlds on all cores: make sim-swarm MINUTES=10 (FIRST=n: from that seed on)
	$(BIN)/python -m sim --minutes $(or $(MINUTES),10) --first $(or $(FIRST),0)

.PHONY: sim-profiles
sim-profiles: $(SYNCED) ## thousands of worlds of every profile, and what must be seen in them (10 min)
	$(BIN)/python -m tools.run_tests --kind night --package sim $(TESTS)

.PHONY: images
images: $(SYNCED) ## container images with docker, podman or buildah (IMAGES="broker etcd": some; BASE_IMAGE=…: on that)
	$(BIN)/python -m images.build $(IMAGES)

.PHONY: chart chart-check
chart: $(SYNCED) ## write what the chart has from elsewhere: definitions, schema, golden files
	$(BIN)/python -m tools.chart

chart-check: $(SYNCED) ## fail if any of it is stale
	$(BIN)/python -m tools.chart --check

.PHONY: explore mutants
mutants: $(SYNCED) ## the table of planted bugs: how soon the simulator finds each, and by which broken promise; it goes into the page (minutes); STALE=1: only rows whose world shows its bug no more
	$(BIN)/python -m sim --mutants $(if $(STALE),--stale) --seeds 600 --page docs/internals/planted-bugs.md

explore: $(SYNCED) ## a small world, all interleavings: make explore STATES=100000 (WORLD="--crashes 2": one of one's own)
	$(BIN)/python -m sim.explore --states $(or $(STATES),100000) $(WORLD)

.PHONY: e2e-cluster e2e-cluster-down
e2e-cluster: $(SYNCED) ## a real Kubernetes of three nodes on this machine (root; the first time needs Go and about 10 min)
	$(BIN)/python -m tools.kubernetes up

e2e-cluster-down: $(SYNCED) ## end and remove that cluster; what was built stays cached
	$(BIN)/python -m tools.kubernetes down

.PHONY: e2e e2e-pages e2e-all
e2e-all: $(SYNCED) ## that cluster, its page, every case, and away with it
	$(MAKE) e2e-cluster && $(MAKE) e2e-pages && $(MAKE) e2e; status=$$?; $(MAKE) e2e-cluster-down; exit $$status

e2e-pages: $(SYNCED) ## type the commands of the Kubernetes page, word for word, on that cluster, new (OUT=directory: transcripts)
	$(BIN)/python -m e2e.kubernetes.reading $(if $(OUT),--out=$(OUT))

e2e: $(SYNCED) ## the chart, the operator and failing nodes on that cluster, judged (QUICK=1: a choice; ONLY="node lost": some)
	$(BIN)/python -m e2e.kubernetes

clean: ## remove what was made here (not the environment)
	rm -rf ./*-out .local .pytest_cache .mypy_cache .ruff_cache .hypothesis
