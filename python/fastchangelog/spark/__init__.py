"""Durable keyed state for PySpark's own streaming queries.

>>> from fastchangelog.spark import grouped  # doctest: +SKIP
>>> top = grouped(bids, "auction", state="s3://bucket/state").agg(F.sum("price"))  # doctest: +SKIP

Owns: the public names of the Spark side, and the check that what it needs is installed.
Does not own: anything else; `grouped` is the way in, `ARCHITECTURE.md` the map.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fastchangelog.spark import requirements as _requirements

if TYPE_CHECKING:
    from fastchangelog.spark.acceleration import accelerate
    from fastchangelog.spark.deduplicate import drop_duplicates, drop_duplicates_within_watermark
    from fastchangelog.spark.failures import explain_error
    from fastchangelog.spark.grouped_stream import GroupedStream, grouped
    from fastchangelog.spark.imported_state import ImportedState, import_state
    from fastchangelog.spark.reading.plan import read_state

__all__ = [
    "GroupedStream",
    "ImportedState",
    "accelerate",
    "drop_duplicates",
    "drop_duplicates_within_watermark",
    "explain_error",
    "grouped",
    "import_state",
    "read_state",
]

_requirements.check()

#: On first use: a worker that only runs a task needs none of these. No module here is named as what it gives: an
#: imported submodule would replace the function of that name.
_LAZY = {
    "GroupedStream": "fastchangelog.spark.grouped_stream",
    "accelerate": "fastchangelog.spark.acceleration",
    "drop_duplicates": "fastchangelog.spark.deduplicate",
    "drop_duplicates_within_watermark": "fastchangelog.spark.deduplicate",
    "explain_error": "fastchangelog.spark.failures",
    "grouped": "fastchangelog.spark.grouped_stream",
    "ImportedState": "fastchangelog.spark.imported_state",
    "import_state": "fastchangelog.spark.imported_state",
    "read_state": "fastchangelog.spark.reading.plan",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'fastchangelog.spark' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
