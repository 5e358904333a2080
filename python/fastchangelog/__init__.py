"""Durable keyed state for PySpark: RocksDB next to the workers, a changelog in an object store.

Owns: the public names. Does not own: their modules. Most are imported on first use, so that `import fastchangelog`
stays cheap and loads no optional package (Spark).

The aggregate functions are those of `fastchangelog.functions`. They are attributes here, too, but `import *` leaves
them out: some have the names of builtins. It leaves out `spark`, too, which needs PySpark.

>>> import fastchangelog as fc
>>> fc.sum("price", where="price > 0").alias("total")
sum(price) where price > 0 as total
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fastchangelog import functions
from fastchangelog.errors import (
    ArgumentTypeError,
    ClosedError,
    CorruptDataError,
    FastChangelogError,
    FencedError,
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    RetryableError,
    SchemaMismatchError,
    StateNotFoundError,
    StoreError,
    UnsupportedError,
)
from fastchangelog.forks import settle_locks_before_forks
from fastchangelog.functions import Aggregate
from fastchangelog.functions.logic import *  # noqa: F403 attributes outside of __all__, which mypy finds here alone
from fastchangelog.functions.selections import *  # noqa: F403
from fastchangelog.functions.statistics import *  # noqa: F403
from fastchangelog.functions.sums import *  # noqa: F403

if TYPE_CHECKING:
    from fastchangelog import spark  # noqa: F401 outside of __all__: it needs PySpark
    from fastchangelog._internal import __version__
    from fastchangelog.changelog import Change, ChangelogHandle, ChangelogReader, ChangelogStorage, ChangelogWriter
    from fastchangelog.embedded.handle import StateHandle
    from fastchangelog.embedded.state import State, open_state
    from fastchangelog.materialization.policy import MaterializationPolicy
    from fastchangelog.process_metrics import metrics
    from fastchangelog.state.aggregating import AggregatingState, VectorAggregatingState
    from fastchangelog.state.list import ListState, VectorListState
    from fastchangelog.state.map import MapState, VectorMapState
    from fastchangelog.state.timers import TimerState
    from fastchangelog.state.value import ValueState, VectorValueState
    from fastchangelog.vectorised.batch import Batch
    from fastchangelog.vectorised.context import Context
    from fastchangelog.vectorised.counters import Counter
    from fastchangelog.vectorised.processor import Processor
    from fastchangelog.vectorised.timers import Timers

__all__ = [
    "Aggregate",
    "AggregatingState",
    "ArgumentTypeError",
    "Batch",
    "Change",
    "ChangelogHandle",
    "ChangelogReader",
    "ChangelogStorage",
    "ChangelogWriter",
    "ClosedError",
    "Context",
    "CorruptDataError",
    "Counter",
    "FastChangelogError",
    "FencedError",
    "InternalError",
    "InvalidArgumentError",
    "ListState",
    "MapState",
    "MaterializationPolicy",
    "PermissionDeniedError",
    "Processor",
    "RetryableError",
    "SchemaMismatchError",
    "State",
    "StateHandle",
    "StateNotFoundError",
    "StoreError",
    "TimerState",
    "Timers",
    "UnsupportedError",
    "ValueState",
    "VectorAggregatingState",
    "VectorListState",
    "VectorMapState",
    "VectorValueState",
    "__version__",
    "functions",
    "metrics",
    "open_state",
]

#: Public name -> the module that holds it; None where the name is the module.
_LAZY: dict[str, str | None] = {
    "AggregatingState": "fastchangelog.state.aggregating",
    "Batch": "fastchangelog.vectorised.batch",
    "Change": "fastchangelog.changelog",
    "ChangelogHandle": "fastchangelog.changelog",
    "ChangelogReader": "fastchangelog.changelog",
    "ChangelogStorage": "fastchangelog.changelog",
    "ChangelogWriter": "fastchangelog.changelog",
    "Context": "fastchangelog.vectorised.context",
    "Counter": "fastchangelog.vectorised.counters",
    "ListState": "fastchangelog.state.list",
    "MapState": "fastchangelog.state.map",
    "MaterializationPolicy": "fastchangelog.materialization.policy",
    "Processor": "fastchangelog.vectorised.processor",
    "State": "fastchangelog.embedded.state",
    "StateHandle": "fastchangelog.embedded.handle",
    "TimerState": "fastchangelog.state.timers",
    "Timers": "fastchangelog.vectorised.timers",
    "ValueState": "fastchangelog.state.value",
    "VectorAggregatingState": "fastchangelog.state.aggregating",
    "VectorListState": "fastchangelog.state.list",
    "VectorMapState": "fastchangelog.state.map",
    "VectorValueState": "fastchangelog.state.value",
    "__version__": "fastchangelog._internal",
    "metrics": "fastchangelog.process_metrics",
    "open_state": "fastchangelog.embedded.state",
    "spark": None,
}

settle_locks_before_forks()


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'fastchangelog' has no attribute {name!r}")
    holder = _LAZY[name]
    value = importlib.import_module(f"fastchangelog.{name}") if holder is None else _from(holder, name)
    globals()[name] = value
    return value


def _from(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, *functions.__all__})
