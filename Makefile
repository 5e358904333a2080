# The commands of the project. Everything is set up from nothing under $FASTCHANGELOG_CACHE (default
# ~/.cache/fastchangelog); needed beforehand: make, Python 3.10+, cargo, Java 17+, a C++ compiler.
#
# Owns: which steps a command has. Does not own: how a step sets itself up (scripts/setup.py).

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo t test test-rust test-python test-benches test-matrix campaign fuzz mutants lint audit format develop bench \
	bench-rust bench-state wheel dist print-python

# Looked for only when a target needs it; one clear line when there is none.
SETUP = python=$$(PYTHON='$(PYTHON)' sh scripts/find_python.sh) && "$$python" scripts/setup.py
# The extension module links against no libpython, so cargo cannot run tests in it: Python tests it.
RUST = --locked --workspace --exclude fastchangelog-pyext
PYTEST = -m pytest -p no:cacheprovider
# In tests/parallel.txt, arguments of all runs of all tests: tests/conftest.py says how many processes `auto` are and which
# tests stay in one, in the order of its collection. A process that crashes is not replaced: with a new one pytest-xdist may
# wait for ever. Failures are shown at once, so that a run that is ended from outside hides none.
PARALLEL = @tests/parallel.txt --durations 40
# Measured is what is released: optimized, with RocksDB compiled from its sources.
RELEASE = export FASTCHANGELOG_PROFILE=release;
ARGS =

help:
	@echo 'make demo           replay real flights and a generated auction, kill everything, compare row by row'
	@echo 'make t              one test: ARGS=tests/test_rows.py::test_x, or ARGS="-p fastchangelog-format name" for Rust'
	@echo 'make test           all tests: Rust, Python on the working tree, benchmarks once as tests'
	@echo 'make test-matrix    the Spark tests on PySpark 4.0 to 4.3 (ARGS="4.0 tests/spark/test_build.py" for a part)'
	@echo 'make campaign       kill a Spark job 500 times at random, judge all it leaves (ARGS="--minutes 5" for less)'
	@echo 'make fuzz           fuzz every decoder for a minute (ARGS="600 manifest": one of them for ten); needs nightly Rust'
	@echo 'make mutants        change the Rust sources at random, see which tests notice (ARGS="-f rust/format/src/error.rs")'
	@echo 'make lint           formatting, clippy, ruff, mypy, import contracts, spelling'
	@echo 'make audit          unused dependencies; licenses, origins and known vulnerabilities of the others; needs the network'
	@echo 'make develop        maturin develop into the active virtual environment'
	@echo 'make bench          measure the release build, side by side with native Spark (ARGS=--quick for a short round)'
	@echo 'make bench-state    measure an embedded state with a store (ARGS=s3://bucket/tmp; by default the temp folder)'
	@echo 'make wheel          build a release wheel for this machine and print where it is'
	@echo 'make dist           build what is uploaded: sdist and manylinux wheel, tested in an empty environment'
	@echo 'make -s print-python  print an interpreter that imports the working tree'
	@echo 'make format         format the Rust and Python sources, apply safe fixes'

demo:
	@$(SETUP) python -m fastchangelog demo $(ARGS)

t:
	@$(SETUP) test $(ARGS)

test: test-rust test-python test-benches
	@echo '[test] all passed'

test-rust:
	@echo '[test] Rust'
	@$(SETUP) $(if $(strip $(ARGS)),cargo test,rust-tests) $(RUST) $(ARGS)

test-python:
	@echo '[test] Python, on the working tree'
	@$(SETUP) python $(PYTEST) $(PARALLEL) tests $(ARGS)

test-benches:
	@echo '[test] benchmarks, each once'
	@if ls rust/*/benches/*.rs >/dev/null 2>&1; then $(SETUP) cargo test $(RUST) --bench '*'; fi
	@$(SETUP) python $(PYTEST) benches --benchmark-disable

campaign:
	@export PYTHONPATH='$(CURDIR)/tests'; $(SETUP) python -m support.kills.campaign $(ARGS)

test-matrix:
	@$(SETUP:setup.py=spark_matrix.py) $(ARGS)

fuzz:
	@sh scripts/fuzz.sh $(ARGS)

mutants:
	@$(SETUP) cargo-tool mutants --output "$${FASTCHANGELOG_CACHE:-$$HOME/.cache/fastchangelog}" $(ARGS)

lint:
	@echo '[lint] Python'
	@$(SETUP) tool ruff check .
	@$(SETUP) tool ruff format --check --quiet .
	@$(SETUP) tool mypy
	@$(SETUP) tool scripts/lint_imports.py
	@$(SETUP) tool scripts/rust_circles.py
	@$(SETUP) tool scripts/gen_reference.py --check
	@$(SETUP) tool benches/ratio_plot.py docs/images/ratios.json --check
	@echo '[lint] words'
	@$(SETUP) tool scripts/words.py
	@$(SETUP) tool typos
	@$(SETUP) tool zizmor --offline --no-progress --quiet .github
	@echo '[lint] Rust'
	@$(SETUP) cargo fmt --all --check
	@$(SETUP) cargo clippy --locked --workspace --all-targets -- -D warnings
	@echo '[lint] clean'

audit:
	@$(SETUP) cargo-tool machete rust
	@$(SETUP) cargo-tool deny --log-level error check --hide-inclusion-graph

format:
	@$(SETUP) cargo fmt --all
	@$(SETUP) tool ruff check --fix .
	@$(SETUP) tool ruff format .

bench: bench-rust
	@$(RELEASE) $(SETUP) python $(PYTEST) benches --benchmark-only --benchmark-columns=min,median,stddev,rounds
	@$(RELEASE) $(SETUP) python benches/spark_compare.py all $(ARGS)

bench-rust:
	@$(RELEASE) if ls rust/*/benches/*.rs >/dev/null 2>&1; then $(SETUP) cargo bench --locked --workspace --exclude fastchangelog-pyext --bench '*'; fi

bench-state:
	@$(RELEASE) $(SETUP) python benches/state_times.py $(ARGS)

wheel:
	@$(SETUP) wheel

dist:
	@$(SETUP:setup.py=distribution.py) $(ARGS)

develop:
	@$(SETUP) develop $(ARGS)

print-python:
	@$(SETUP) python
