# The commands of the project. Everything is set up from nothing under $FASTCHANGELOG_CACHE (default
# ~/.cache/fastchangelog); needed beforehand: make, Python 3.10+, cargo, Java 17+, a C++ compiler.
#
# Owns: which steps a command has. Does not own: how a step sets itself up (scripts/setup.py).

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test test-rust test-python test-benches test-matrix campaign fuzz mutants lint audit format develop bench bench-rust wheel dist print-python

# Looked for only when a target needs it; one clear line when there is none.
SETUP = python=$$(PYTHON='$(PYTHON)' sh scripts/find_python.sh) && "$$python" scripts/setup.py
# The extension module links against no libpython, so cargo cannot run tests in it: Python tests it.
RUST = --locked --release --workspace --exclude fastchangelog-pyext
PYTEST = -m pytest -p no:cacheprovider
# A file of tests stays in one process. Files in their order: those that start Spark, the longest, come first.
# A process that crashes is not replaced: with a new one pytest-xdist may wait for ever. Failures are shown at once: what
# ends a run from outside hides none.
PARALLEL = -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --instafail --durations 20
ARGS =

help:
	@echo 'make demo           replay real flights and a generated auction, kill everything, compare row by row'
	@echo 'make test           all tests: Rust, Python against the built wheel, benchmarks once as tests'
	@echo 'make test-matrix    the Spark tests on PySpark 4.0 to 4.3 (ARGS="4.0 tests/spark/test_build.py" for a part)'
	@echo 'make campaign       kill a Spark job 500 times at random, judge all it leaves (ARGS="--minutes 5" for less)'
	@echo 'make fuzz           fuzz every decoder for a minute (ARGS="600 manifest": one of them for ten); needs nightly Rust'
	@echo 'make mutants        change the Rust sources at random, see which tests notice (ARGS="-f rust/format/src/error.rs")'
	@echo 'make lint           formatting, clippy, ruff, mypy, import contracts, dependencies'
	@echo 'make audit          known vulnerabilities of the dependencies; needs the network'
	@echo 'make develop        maturin develop into the active virtual environment'
	@echo 'make bench          measure, side by side with native Spark (ARGS=--quick for a short round)'
	@echo 'make wheel          build the wheel and print where it is'
	@echo 'make dist           build what is uploaded: sdist and manylinux wheel, checked in a new environment'
	@echo 'make -s print-python  print an interpreter that has the built wheel installed'
	@echo 'make format         format the Rust sources, apply safe fixes to the Python ones'

demo:
	@$(SETUP) venv -m fastchangelog demo $(ARGS)

test: test-rust test-python test-benches
	@echo '[test] all passed'

test-rust:
	@echo '[test] Rust'
	@$(SETUP) cargo test $(RUST) $(ARGS)

test-python:
	@echo '[test] Python, with the built wheel'
	@$(SETUP) venv $(PYTEST) $(PARALLEL) tests $(ARGS)

test-benches:
	@echo '[test] benchmarks, each once'
	@if ls rust/*/benches/*.rs >/dev/null 2>&1; then $(SETUP) cargo test $(RUST) --bench '*'; fi
	@$(SETUP) venv $(PYTEST) benches --benchmark-disable

campaign:
	@$(SETUP) venv tests/campaign $(ARGS)

test-matrix:
	@$(SETUP:setup.py=spark_matrix.py) $(ARGS)

fuzz:
	@sh scripts/fuzz.sh $(ARGS)

mutants:
	@$(SETUP) cargo-tool mutants --output "$${FASTCHANGELOG_CACHE:-$$HOME/.cache/fastchangelog}" $(ARGS)

lint:
	@echo '[lint] Rust'
	@$(SETUP) cargo fmt --all --check
	@$(SETUP) cargo clippy --locked --release --workspace --all-targets -- -D warnings
	@echo '[lint] Python'
	@$(SETUP) tool -m ruff check .
	@$(SETUP) tool -m mypy
	@$(SETUP) tool scripts/lint_imports.py
	@$(SETUP) tool scripts/gen_reference.py --check
	@$(SETUP) tool scripts/package_picture.py --check
	@$(SETUP) tool benches/ratio_plot.py docs/images/ratios.json --check
	@echo '[lint] words'
	@$(SETUP) tool scripts/words.py
	@echo '[lint] dependencies'
	@$(SETUP) cargo-tool machete rust
	@$(SETUP) cargo-tool deny --log-level error check --hide-inclusion-graph bans licenses sources
	@echo '[lint] clean'

audit:
	@$(SETUP) cargo-tool deny check advisories

format:
	@$(SETUP) cargo fmt --all
	@$(SETUP) tool -m ruff check --fix .

bench: bench-rust
	@$(SETUP) venv $(PYTEST) benches --benchmark-only --benchmark-columns=min,median,stddev,rounds
	@$(SETUP) venv benches/spark_compare.py all $(ARGS)

bench-rust:
	@if ls rust/*/benches/*.rs >/dev/null 2>&1; then $(SETUP) cargo bench --locked --workspace --exclude fastchangelog-pyext --bench '*'; fi

wheel:
	@$(SETUP) wheel

dist:
	@$(SETUP:setup.py=distribution.py)

develop:
	@$(SETUP) develop $(ARGS)

print-python:
	@$(SETUP) python
