# Each target works as the only command on a fresh machine with Python 3.11.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
CODE   := src lab/src experiments tests benchmarks tools examples
# One thread per test process: two processes on two cores do not fight, and results do not depend on the machine.
# Tests that ask for two threads have them sleep while they wait: on cores that are taken, spinning took five times as
# long. Bytecode is kept, because many tests start processes that import the library.
TESTENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=

.PHONY: help demo test test-core test-all check lint format docs bench dist clean
help:
	@echo "make demo    a study of seven methods on embedded data; writes demo/ and its page demo/report.html"
	@echo "make test    the test suite"
	@echo "make test-core  the tests of the core alone"
	@echo "make test-all  what takes longer: clusters, kills, fuzzing, browsers, whole case grids"
	@echo "make test-oldest  the suite with the lower bounds of pyproject.toml (downloads gigabytes)"
	@echo "make mutants N=50  exchange N operators of src, one at a time: does a test notice?"
	@echo "make check   format, lint, types, import order, tests, doctests"
	@echo "make format  rewrite the sources in the house format"
	@echo "make docs    this library's site in build/docs; a warning is an error"
	@echo "make bench   the benchmarks, printed side by side (long)"
	@echo "make dist    wheels and sdists, each installed and tried in empty environments of three Pythons"

$(VENV)/.installed: pyproject.toml lab/pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "need $(PYTHON); set PYTHON=... to another Python >= 3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]' -e lab
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m secateurs demo --out demo

test: $(VENV)/.installed
	$(TESTENV) $(BIN)/python -m pytest -n 2 --dist worksteal --doctest-modules src lab/src tests
	$(TESTENV) $(BIN)/python -m pytest -n 2 -p pretend tests/gpu

# What somebody runs who changes the core: its own tests alone, none of which needs the laboratory.
CORE := base masks graph paths scores channels optim prune files adapters
test-core: $(VENV)/.installed
	$(TESTENV) $(BIN)/python -m pytest -n 2 $(addprefix tests/,$(CORE)) tests/test_house.py

# A cluster, Parquet files and a browser are tried where their packages can be had; elsewhere those tests are skipped.
# So is Triton, whose kernels run in its interpreter there, and are compiled for cards that are not.
INTERPRETED := tests/optim/test_gpu_clear.py tests/optim/factorized/test_gpu_step.py \
	tests/optim/factorized/test_compiled.py tests/ship/fast/test_gpu_lists.py
test-all: $(VENV)/.installed
	-$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e . -e 'lab[ray]' selenium
	$(TESTENV) $(BIN)/python -m pytest -n 2 --dist worksteal -rs -m slow tests
	$(TESTENV) $(BIN)/python -m pytest -n 2 -p pretend -m slow tests/gpu
	-$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt 'triton>=3.9,<4'
	$(TESTENV) TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 -rs -m '' $(INTERPRETED)

# The lower bounds as exact versions, in an environment of their own; what they bring is left to pip.
OLDEST ?= .venv-oldest
test-oldest:
	test -d $(OLDEST) || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install -q --disable-pip-version-check \
		$$($(PYTHON) tools/oldest.py dev hf)
	$(OLDEST)/bin/python -m pip install -q --disable-pip-version-check --no-deps -e . -e lab
	$(TESTENV) $(OLDEST)/bin/python -m pytest -n 2 --dist worksteal --doctest-modules src lab/src tests

# The map says which tests call a function; it is made once, by one run of the suite.
N ?= 50
SEED ?= 0
MAP ?= $(VENV)/mutants.map
$(MAP): $(VENV)/.installed
	$(TESTENV) MUTANTS_MAP=$(abspath $(MAP)).part PYTHONPATH=tools \
		$(BIN)/python -m pytest -p traced --doctest-modules src lab/src tests || true
	mv $(MAP).part $(MAP)

mutants: $(MAP)
	$(TESTENV) $(BIN)/python tools/mutants.py --map $(MAP) --count $(N) --seed $(SEED) \
		--out mutants.jsonl

check: $(VENV)/.installed
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(TESTENV) $(BIN)/python -m pytest -n 2 --dist worksteal --doctest-modules src lab/src tests
	$(TESTENV) $(BIN)/python -m pytest -n 2 -p pretend tests/gpu

lint: $(VENV)/.installed
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# Public names, code blocks and commands of the pages are checked by tests/test_docs.py. The notebooks
# are the examples, executed where one or the library has changed; `make docs NOTEBOOKS=` does without.
NOTEBOOKS := $(patsubst examples/%.py,docs/gathered/notebooks/%.ipynb,$(wildcard examples/*.py))
docs: $(VENV)/.docs $(NOTEBOOKS)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

$(NOTEBOOKS): docs/gathered/notebooks/%.ipynb: examples/%.py tools/notebooks.py \
		$(shell find src lab/src -name '*.py' -o -name '*.cpp') | $(VENV)/.docs
	$(TESTENV) $(BIN)/python tools/notebooks.py $< $@

# On a machine with a GPU: what must be the same there, and what it costs. Nothing is installed.
gpu:
	PYTHONPATH=src:tests python3 benchmarks/gpu.py --out benchmarks/results/gpu

bench: $(VENV)/.installed
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

# Each file is installed where nothing else is, from outside the checkout, and does its work there:
# the library alone first, then the laboratory on top of it; on every Python that is found under its
# name or among those of pyenv, whose `python3.12` runs only where somebody has chosen it. How long
# the library itself takes is told: torch and the other dependencies are there by then.
PYTHONS ?= $(foreach minor,11 12 13,$(shell \
	for python in python3.$(minor) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.$(minor).*/bin/python; do \
		$$python -c "" 2> /dev/null && echo $$python && break; done))
dist: export PYTHONPATH =
dist: $(VENV)/.installed
	rm -rf dist build
	$(BIN)/python -m pip install -q --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist lab
	$(BIN)/python tools/wheels.py dist
	set -e; for python in $(PYTHONS); do for kind in .whl .tar.gz; do \
		echo "$$python, $$kind:"; \
		rm -rf build/try; $$python -m venv build/try; cp benchmarks/smoke.py build/; \
		build/try/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt \
			$$($(BIN)/python tools/oldest.py --bounds); \
		for name in secateurs secateurs_lab; do \
			start=$$(date +%s); \
			build/try/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt \
				dist/$$name-[0-9]*$$kind; \
			echo "$$name installed in $$(($$(date +%s) - start)) s"; \
			(cd build && try/bin/python smoke.py); \
			build/try/bin/secateurs scores > /dev/null; \
		done; \
		build/try/bin/secateurs study --help > /dev/null; \
	done; done; rm -rf build
	@echo "tried with: $(PYTHONS)"

clean:
	rm -rf $(VENV) demo
