# make demo   sets up the light core and runs the main job
# make test   sets everything up and passes the tests

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-heavy lint types accuracy kernels-bench clean

$(VENV)/core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[fast,import,dev]'
	@mkdir -p .typing && ln -sfn .. .typing/splitplan
	@touch $@ $(VENV)/core

DEMO = --model llama-3.1-70b --fleet four-racks --workload azure-conv --rate 8 --slo ttft=2s@p95,tpot=60ms@p95

demo: $(VENV)/core
	@mkdir -p demo
	$(BIN)/planner solve $(DEMO) -o demo/plan.yaml
	$(BIN)/planner launch demo/plan.yaml --dry-run --target shell -o demo/shell
	$(BIN)/planner launch demo/plan.yaml --dry-run --target kubernetes -o demo/kubernetes
	$(BIN)/planner bench demo/plan.yaml --mock --duration 30

test: lint types
	$(BIN)/python -m pytest -n 2

# opt-in: real vLLM on CPUs over NIXL, Ray placement; installs 4 GB, takes a quarter of an hour
test-heavy: $(VENV)/dev
	.ci/install-heavy .venv-heavy
	SPLITPLAN_HEAVY=.venv-heavy $(BIN)/python -m pytest tests/heavy -v -s

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	MYPYPATH=.typing $(BIN)/mypy -p splitplan.catalogs -p splitplan.kernels -p splitplan.profiler -p splitplan.planner -p splitplan.launcher

# each kernel against this GPU's own copy and matrix product; says so where there is no GPU
kernels-bench: $(VENV)/core
	$(BIN)/python benchmarks/kernels/bench.py

# make accuracy DATA=FILE   scores predictions against measured points, each source held out
accuracy: $(VENV)/dev
	$(BIN)/python -m benchmarks.accuracy $(DATA) --held-out

clean:
	rm -rf $(VENV) .typing demo build *.egg-info
