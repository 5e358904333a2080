"""Arrow batches as the pandas frames that Spark's operator takes, without conversion of values.

Owns: the extension array that passes any Arrow column, nested ones too, through PySpark's conversion unchanged.
Does not own: PySpark's conversion (`PandasToArrowConversion`), which is used unchanged.

PySpark converts nested columns value by value with `series.apply(…)`, which is slow and fails on Arrow-backed
nulls. pandas delegates `apply` on an extension array to the array's own `map`; ours returns itself, since its values
already have the form that Spark needs.

pandas takes a second to import. At each start of a query Spark unpickles its operators in a new process on the driver,
which only asks for the schema of their state. So modules with operators import this one and `processor.frames` only
inside functions that handle rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

__all__ = ["frame"]


class _PassThrough(pd.arrays.ArrowExtensionArray):  # type: ignore[misc]
    def map(self, mapper: Any, na_action: Any = None) -> Any:
        return _Mapped(self.__arrow_array__())


class _Mapped(_PassThrough):
    def __getitem__(self, item: Any) -> Any:
        # pandas only tests whether the first value of `map` is a Series. Strings need not be UTF-8, so none is decoded.
        return None if isinstance(item, int) else super().__getitem__(item)


def frame(columns: Sequence[pa.Array | pa.ChunkedArray], names: Sequence[str]) -> pd.DataFrame:
    """A frame of these columns under these names; the data is shared, not copied."""
    series = {
        name: pd.Series(_PassThrough(c if isinstance(c, pa.ChunkedArray) else pa.chunked_array([c])), copy=False)
        for name, c in zip(names, columns, strict=True)
    }
    return pd.DataFrame(series, copy=False)
