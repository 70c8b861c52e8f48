# Every target does its own set-up; a second call skips what is done.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
RENDERERS := benchmarks/.renderers
PEERS := benchmarks/.peers
MATRIX := benchmarks/.matrix.jsonl
LEARNED := benchmarks/.learned.jsonl
REGION := benchmarks/.region.jsonl
LEARNING := tests/e2e/test_learning.py
CHEATS := $(sort $(wildcard tests/contract/sandbox/test_swe_[!su]*.py tests/contract/sandbox/test_forged_*.py))
CENSUS := tests/contract/sandbox/test_leftovers.py
HERE := "not sglang and not vllm and not sandbox and not ranks and not nightly"

.PHONY: venv demo test tests runs learning sandboxes cheats arena census ranks sglang vllm unit lint types layers integration nightly clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tests/requirements.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt torch
	$(PY) -m pip install --quiet -c constraints.txt -e '.[train,docker,dev]'
	$(PY) -m pip install --quiet --no-deps -r tests/requirements.txt
	touch $@

demo: venv
	$(PY) benchmarks/learning.py --env calculator --seeds 0

lint: venv
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: venv
	$(VENV)/bin/mypy
	$(VENV)/bin/pyright -p pyproject.toml

layers: venv
	$(VENV)/bin/lint-imports

unit: venv
	$(PY) -m pytest tests/unit -q

# Most tests keep one core busy, so whole runs are made beside them, and types are checked there.
test: lint layers
	$(MAKE) --no-print-directory -j3 learning runs tests

tests: venv
	$(PY) -m pytest -m $(HERE) --ignore=tests/e2e --durations=25

runs: venv
	$(PY) -m pytest -m $(HERE) tests/e2e --ignore=$(LEARNING) --durations=25

learning: types
	$(PY) -m pytest -m $(HERE) $(LEARNING)

# A test of a sandbox keeps one core busy; a census of the machine is taken where nothing else runs.
sandboxes: venv
	.ci/with_docker bash -c '$(MAKE) --no-print-directory -j2 cheats arena && $(MAKE) census'

cheats: venv
	$(PY) -m pytest -m "sandbox and not nightly" $(CHEATS) --durations=15

arena: venv
	$(PY) -m pytest -m "sandbox and not nightly" $(CHEATS:%=--ignore=%) --ignore=$(CENSUS) --durations=15

census: venv
	$(PY) -m pytest -m "sandbox and not nightly" $(CENSUS)

ranks: venv
	$(PY) -m pytest -m "ranks and not nightly" --durations=15

sglang: venv
	$(PY) -m agentrl engine install sglang --cpu
	REQUIRE_SGLANG=1 $(PY) -m pytest -m "sglang and not nightly"

vllm: venv
	$(PY) -m agentrl engine install vllm --cpu
	REQUIRE_VLLM=1 $(PY) -m pytest -m "vllm and not nightly"

$(RENDERERS): benchmarks/requirements.txt $(STAMP)
	rm -rf $@
	$(PY) -m pip install --quiet --no-deps -t $@ -r $<
	touch $@

$(PEERS): benchmarks/peers.txt $(STAMP)
	rm -rf $@
	$(PY) -m pip install --quiet --no-deps -t $@ -r $<
	touch $@

nightly: venv $(RENDERERS) $(PEERS) sglang vllm
	REQUIRE_SGLANG=1 $(PY) -m pytest -m "sglang and nightly"
	REQUIRE_VLLM=1 $(PY) -m pytest -m "vllm and nightly"
	$(PY) -m pytest -m "nightly and not sglang and not vllm and not sandbox"
	$(PY) -m pytest -m $(HERE) --hypothesis-profile=nightly tests/unit tests/contract
	.ci/with_docker $(PY) -m pytest -m "nightly and sandbox"
	$(PY) benchmarks/learning_matrix.py $(MATRIX) --env calculator
	$(PY) benchmarks/learning_matrix.py $(MATRIX) --env number_guess --cells 8
	$(PY) benchmarks/learning_matrix.py $(MATRIX) --env long_haul --cells 8
	$(PY) benchmarks/learning.py --env calculator --seeds 1,2
	$(PY) benchmarks/learning.py --env calculator --variant ppo --no-control
	$(PY) benchmarks/learning.py --env number_guess --seeds 0,1,2
	$(PY) benchmarks/learning.py --env long_haul --seeds 0
	$(PY) benchmarks/memory.py
	$(PY) benchmarks/relay.py
	$(PY) benchmarks/engine.py
	$(PY) benchmarks/train_step.py
	PYTHONPATH=$(PEERS) $(PY) benchmarks/algorithms.py
	PYTHONPATH=$(PEERS) $(PY) benchmarks/trl_agreement.py
	$(PY) benchmarks/algorithm_cost.py
	$(PY) benchmarks/corrections.py
	$(PY) benchmarks/algorithms_learning.py $(LEARNED)
	$(PY) benchmarks/trust_region.py $(REGION)
	$(PY) benchmarks/models.py
	$(PY) benchmarks/parsers.py
	PYTHONPATH=$(RENDERERS) $(PY) benchmarks/agreement.py
	PYTHONPATH=$(RENDERERS) $(PY) benchmarks/tito.py
	$(PY) -m agentrl eval --env swe_sandbox --sandbox bwrap --agent oracle
	$(PY) -m agentrl train --env swe_sandbox --sandbox bwrap --model smollm2-135m --steps 1
	$(PY) benchmarks/swe.py
	$(PY) -m benchmarks.reward_hacking
	$(PY) -m benchmarks.learned_cheating
	.ci/with_docker $(PY) benchmarks/sandbox.py
	$(PY) benchmarks/rollout.py
	$(PY) benchmarks/reshard.py
	$(PY) benchmarks/schedule.py
	$(PY) benchmarks/placement.py
	$(PY) benchmarks/overhead.py
	$(PY) benchmarks/async.py
	$(PY) benchmarks/async.py --learning
	$(PY) benchmarks/concurrency.py

clean:
	rm -rf $(VENV) $(RENDERERS) $(PEERS) $(MATRIX) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
