"""The examples in docstrings run.

Owns: the examples of all modules. Does not own: those of pages (docs/state.md is in `test_embedded_collections`).
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import fastchangelog

#: Importing the first runs a program. The second is the library that a development build links, no module.
NO_MODULES = {"fastchangelog.__main__", "fastchangelog.librocksdb"}
#: Without these packages a module that needs them is left out.
OPTIONAL = ("fastchangelog.spark", "fastchangelog.demo")
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(fastchangelog.__path__, "fastchangelog.", onerror=lambda _: None)
    if module.name not in NO_MODULES
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    if name.startswith(OPTIONAL):
        pytest.importorskip("pyspark")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples_of_all_packages() -> None:
    packages = {module.name for module in pkgutil.iter_modules(fastchangelog.__path__)}
    assert {name.split(".")[1] for name in MODULES} >= packages - {name.split(".")[1] for name in NO_MODULES}
