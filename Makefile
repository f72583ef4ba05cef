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

.PHONY: help install lock run test coverage lint format typecheck imports crds bench-gateway bench-routing bench-index bench-exactness kernels-report clean \
  tools images kubernetes run-cluster stop-cluster kind test-chart test-cluster

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

test: install tools ## All tests that need no cluster
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --ignore tests/cluster

coverage: install ## Coverage of prefix index, pick, plan and work queue; below 95 % of any it fails
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

test-cluster: install tools ## Tests on a real Kubernetes (NODES=2; CLUSTER=kind: on that of make kind)
	$(BIN)/pytest tests/cluster $(if $(filter kind,$(CLUSTER)),--kubeconfig $(KIND_CONFIG),--nodes $(or $(NODES),1))

bench-gateway: install ## CPU per request and per event, our gateway and nginx side by side (QUICK=1: half a minute)
	@$(BIN)/python -m benchmarks.gateway

bench-routing: install ## Mean TTFT of routing policies, ours and others', simulated on public traces (RH_TRACES)
	@$(BIN)/python -m benchmarks.routing

bench-index: install ## What the prefix index costs: memory, look-ups, writes, lag over Valkey, agent CPU per block
	@$(BIN)/python -m benchmarks.index

bench-exactness: install ## Predicted against reported cached bytes, live on the bundled engine (QUICK=1: 60 requests)
	@$(BIN)/python -m benchmarks.exactness

kernels-report: install ## Compile the Triton kernels for sm_80/90/100 and write docs/kernels.json
	$(BIN)/python -m roundhouse_torch.kernels.report docs/kernels.json

clean: ## Remove what was built here
	python3 gateway/compile.py --clean
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
