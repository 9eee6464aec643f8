# Plain words; each does its own set-up. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON3 ?= python3
VENV := .venv
BIN := $(VENV)/bin
INPUT ?=
SEEDS ?= 20000
STACK_SEEDS ?= 1000
JOBS ?= 4
IMAGES ?= 50
ROUNDS ?= 100
MINUTES ?= 5

# Compiled modules are kept: each start of a node would compile them all again, and each run of the tests the tests.
unexport PYTHONDONTWRITEBYTECODE

help: ## these words
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(BIN)/.dev ## the virtual environment .venv, with the tools of a developer

# Stamps: what users run needs the package only; what developers run needs the dev extra too. Python compiles the modules
# that are used when they are first imported; pip would compile all.
$(BIN)/python:
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON3" >&2; exit 2; }
	$(PYTHON3) -m venv $(VENV)

# Older versions of pip, which Python brings, look through an index in twice the time. With setuptools here, no build makes an environment;
# the second try is for a dependency without a wheel for this Python that needs another build system.
pip = $(BIN)/pip install -qq --no-compile --disable-pip-version-check
define pip-install
	$(pip) --upgrade pip 'setuptools>=70.1'
	$(pip) --no-build-isolation $(1) || $(pip) $(1)
endef

$(BIN)/.runtime: pyproject.toml server/pyproject.toml | $(BIN)/python
	$(call pip-install,-e . -e server)
	@touch $@

$(BIN)/.dev: pyproject.toml server/pyproject.toml | $(BIN)/python
	$(call pip-install,-e '.[dev]' -e server)
	@touch $@ $(BIN)/.runtime

demo: $(BIN)/.runtime ## the main job: a file through three brokers, the leader killed in mid-stream, everything verified (INPUT=file)
	$(BIN)/ledgermq demo $(if $(INPUT),--input '$(INPUT)')

compose-demo: $(BIN)/.runtime ## the same job on docker-compose.yml, in containers and volumes of its own, removed at the end
	$(BIN)/python -m chaos.compose up
	@trap 'exit 143' TERM; trap 'exit 130' INT; \
	trap 'status=$$?; trap "" TERM INT; [ $$status = 0 ] || $(BIN)/python -m chaos.compose logs; $(BIN)/python -m chaos.compose down; exit $$status' EXIT; \
	$(BIN)/python -m chaos.compose describe >$(VENV)/compose.json \
	  && $(BIN)/ledgermq demo --attach $(VENV)/compose.json $(if $(INPUT),--input '$(INPUT)')

compose-drill: $(BIN)/.dev ## a drill on containers: the leader's links are cut by Toxiproxy, then its cable is pulled (a Docker engine)
	$(BIN)/ledgermq chaos run --schedule conf/compose/drill.toml --fabric compose --rate 200

check: $(BIN)/.dev ## lint, formatting, types, direction of imports, sizes of rooms and functions, names of classes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/python scripts/check_imports
	scripts/check_structure

# Modules, tests rewritten by pytest and Hypothesis' constants of a fresh clone, once instead of by each worker of the tests: halves of the
# tests side by side. What is wrong with a test is told by the tests themselves.
$(BIN)/.compiled: | $(BIN)/.dev
	@for half in 'a-c' 'd-z'; do $(BIN)/python -m pytest --collect-only -q --ignore-glob="tests/[$$half]*" >/dev/null & done; wait
	@touch $@

compile: $(BIN)/.compiled

test: $(BIN)/.dev $(BIN)/.compiled ## the tests of LedgerMQ by itself; `make wheels` has those of what users install, `make strangers` those with programs of others
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not java and not go and not wheels and not drills"

stalls: $(BIN)/.runtime ## each follower stands still for a second in turn, under load, for MINUTES=n: not one election
	mkdir -p build; $(BIN)/ledgermq chaos run --seed 1 --drills stalls --workload steady --minutes $(MINUTES) --report build/stalls.html

budget: $(BIN)/.runtime ## every broker stands still for a second in turn, the leader too, under load: not one election, not one failed send (MINUTES=n)
	mkdir -p build; $(BIN)/ledgermq chaos run --seed 1 --drills stall-each --workload steady --minutes $(MINUTES) --report build/budget.html

drills: $(BIN)/.dev ## eight drills on real processes, two of them in namespaces; what is missing here is told, and skipped (Toxiproxy; root)
	$(BIN)/python -m pytest -m drills -rs tests/cli/drills

wheels: $(BIN)/.dev ## what users install: both wheels built, and tried in environments of their own (a package index)
	$(BIN)/python -m pytest -m wheels tests/packaging

strangers: $(BIN)/.dev ## programs of others with ours: Java and Go clients, mqadmin, Java brokers, nameservers, proxy, directories (Java 17, Maven, Go)
	@# only folders with such tests are collected, by each worker: that halves its start
	JAVA_STORE=one JAVA_CLIENT=1 MIXED=one $(BIN)/python -m pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder -m "java or go" \
	  $$(grep -rlE 'pytest\.mark\.(java|go)\b' tests --include='*.py' | xargs -n1 dirname | sort -u)

test-all: $(BIN)/.dev ## every test, the long ones too (Java 17, Maven, Go)
	TESTS_WHOLE=1 FUZZ=all JAVA_STORE=all JAVA_CLIENT=1 MIXED=all $(BIN)/python -m pytest -n 2 --dist worksteal

java-store: $(BIN)/.dev ## directories of the real Java broker and ours, both ways: every order of stops and kills, every mode (Java 17, Maven)
	JAVA_STORE=all $(BIN)/python -m pytest tests/java_store

java-client: $(BIN)/.dev ## our Python client against the real RocketMQ broker, and beside its Java clients (Java 17, Maven)
	JAVA_CLIENT=1 $(BIN)/python -m pytest tests/client tests/spark/test_java_broker.py -m java

mixed: $(BIN)/.dev ## RocketMQ's brokers in our nameserver's cluster, ours in its, and its 5.x proxy before ours (Java 17, Maven; MIXED=one: the short ones)
	MIXED=$${MIXED:-all} $(BIN)/python -m pytest tests/mixed
mqadmin-java: $(BIN)/.dev ## mqadmin's sub-commands on RocketMQ's own broker: what ours are compared with is written anew (Java 17, Maven)
	MQADMIN_AGAINST=java $(BIN)/python -m pytest tests/mqadmin --rewrite

mqadmin: $(BIN)/.dev ## mqadmin's sub-commands on our clusters: standalone, Raft, and with users (Java 17, Maven)
	$(BIN)/python -m pytest tests/mqadmin
	MQADMIN_MODE=raft $(BIN)/python -m pytest tests/mqadmin
	MQADMIN_USER=mqa:mqa-secret $(BIN)/python -m pytest tests/mqadmin

sim: $(BIN)/.dev ## a long campaign of the simulation over fresh seeds: Raft alone, and whole brokers (SEEDS=n, STACK_SEEDS=n, FIRST=seed, SECONDS_MAX=processor time of each process)
	first=$${FIRST:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	echo "seeds $$first to $$((first + $(SEEDS) - 1))"; $(BIN)/python -m chaos.sim --seeds $$first:$$((first + $(SEEDS))) $(if $(SECONDS_MAX),--seconds $(SECONDS_MAX)) && \
	echo "whole brokers, seeds $$first to $$((first + $(STACK_SEEDS) - 1))"; $(BIN)/python -m chaos.sim --stack --seeds $$first:$$((first + $(STACK_SEEDS))) $(if $(SECONDS_MAX),--seconds $(SECONDS_MAX))

sim-corpus: $(BIN)/.dev ## the seeds of whole brokers that once failed
	$(BIN)/python -m chaos.sim --stack --corpus

elections: $(BIN)/.dev ## elected masters in simulation, fresh seeds (SEEDS=n, FIRST=seed, SECONDS_MAX as `make sim`)
	first=$${FIRST:-$$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}; \
	$(BIN)/python -m chaos.elections --seeds $(SEEDS) --first $$first $(if $(SECONDS_MAX),--seconds $(SECONDS_MAX))

appointed: $(BIN)/.dev ## an appointed master, its slaves and promotions in simulation, fresh seeds (SEEDS=n, FIRST=seed, SECONDS_MAX as `make sim`)
	first=$${FIRST:-$$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}; \
	$(BIN)/python -m chaos.appointed --seeds $(SEEDS) --first $$first $(if $(SECONDS_MAX),--seconds $(SECONDS_MAX))

fuzz: $(BIN)/.dev ## wrong input of every kind to decoders, a broker and a nameserver, from fresh seeds (MINUTES=n); and every planted fault
	FUZZ=all $(BIN)/python -m pytest -q tests/fuzz -k planted
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

attack: $(BIN)/.dev ## attacks on a group with an innocent producer beside: the table of docs/security.md, and what was too much
	$(BIN)/python -m tests.attacks

crash-images: $(BIN)/.dev ## what a power cut may leave of a store, recovered and judged, over fresh seeds (IMAGES=seeds, SECONDS_MAX=processor time, a mode)
	first=$$(od -An -N3 -tu4 /dev/urandom | tr -d ' '); for mode in classic-sync classic-async classic-queue classic-syncfs classic-held classic-index classic-pool raft tables raft-group; do \
	  echo "$$mode, seeds from $$first"; $(BIN)/python -m chaos.crash --mode $$mode --seeds $$first:$$((first + $(IMAGES))) $(if $(SECONDS_MAX),--seconds $(SECONDS_MAX)) || exit $$?; done

chaos: $(BIN)/.dev ## every drill once in every mode that allows it, JOBS=4 side by side, and a campaign of a fresh seed; reports in build/chaos (Toxiproxy; root)
	failed=0; $(BIN)/ledgermq chaos suite --jobs $(JOBS) --rate 200 --out build/chaos || failed=1; \
	$(BIN)/ledgermq chaos suite --jobs $(JOBS) --rate 200 --fabric namespaces --modes controller --drills isolate-leader,one-way,flapping \
	  --out build/chaos/namespaces || failed=1; \
	seed=$$(od -An -N2 -tu2 /dev/urandom | tr -d ' '); $(BIN)/ledgermq chaos run --seed $$seed --minutes 2 --report build/chaos/campaign.html || failed=1; exit $$failed

chaos-long: $(BIN)/.dev ## campaigns of fresh seeds in every mode, simulation and crash images, for HOURS=n; the first one that fails ends it
	end=$$(($$(date +%s) + 3600 * $(or $(HOURS),4))); mkdir -p build/chaos; while [ $$(date +%s) -lt $$end ]; do \
	  for mode in raft sync async controller standalone; do seed=$$(od -An -N3 -tu4 /dev/urandom | tr -d ' '); \
	    $(BIN)/ledgermq chaos run --seed $$seed --mode $$mode --minutes 5 --report build/chaos/$$mode-$$seed.html || exit $$?; done; \
	  $(MAKE) sim elections appointed crash-images SECONDS_MAX=300 || exit $$?; done

histories: $(BIN)/.dev ## a made-up history judged, clean and with an error of each kind: time and memory (OPERATIONS=n)
	$(BIN)/python -m chaos.checkers --operations $(or $(OPERATIONS),10000000)
	$(BIN)/python -m chaos.checkers --operations $(or $(OPERATIONS),10000000) --plant

crash-loop: $(BIN)/.runtime ## kill -9 of a broker under load, a hundred times in each mode (ROUNDS=n)
	$(BIN)/python -m chaos.crash.kill_loop --mode standalone --rounds $(ROUNDS)
	$(BIN)/python -m chaos.crash.kill_loop --mode raft --rounds $(ROUNDS)

interop: $(BIN)/.runtime ## the real Java clients, both versions, all groups, on clusters of ours, beside the real broker's score (Java 17, Maven)
	scripts/interop usual

interop-slaves: $(BIN)/.runtime ## groups send, consume, cluster, admin, admin5 on sync, async and controller clusters, with both clients (not in CI)
	scripts/interop slaves

interop-all: $(BIN)/.runtime ## the same, with ACL and TLS in every mode and with both clients
	scripts/interop whole

interop-real: $(BIN)/.runtime ## the real broker's score anew, into tests/interop/real.tsv (some forty minutes)
	scripts/interop record

failover: $(BIN)/.runtime ## SIGKILL of the master under load in every mode: lost, stored twice, seconds without answers (ROUNDS_EACH=n)
	$(BIN)/ledgermq chaos suite --drills kill-leader --modes sync,async,controller,raft --rounds $(or $(ROUNDS_EACH),3) --out build/failover

race: $(BIN)/.runtime ## side by side with RocketMQ in one run (Java 17, Maven, Go)
	benchmarks/race raft
	benchmarks/race standalone

planted: $(BIN)/.dev ## errors planted in three replicas of a million records each, found by the audit on Spark (Java 17; RECORDS=n)
	$(BIN)/python -m tests.spark.planted --records $${RECORDS:-1000000}

bench: $(BIN)/.runtime ## the figures of benchmarks/README.md: against RocketMQ where Java is there, else ours alone (Go)
	benchmarks/bench

bench-store: $(BIN)/.runtime ## the store's figures, beside RocketMQ's own store in one run where Java 17 and Maven are there
	$(BIN)/python -m benchmarks.store_table

clean: ## remove what was built; .venv stays
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache tests/interop/target

.PHONY: budget compose-drill histories chaos chaos-long drills stalls help install compile demo compose-demo check test wheels strangers test-all java-store mqadmin-java mqadmin java-client sim sim-corpus elections appointed fuzz attack crash-images crash-loop interop interop-slaves interop-all failover race bench bench-store clean
