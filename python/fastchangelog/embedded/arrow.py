"""Python's, numpy's and Arrow's data as Arrow arrays of declared types.

Owns: which argument is one key and which is many, and the errors for data that does not fit.
Does not own: reading schemas (`fastchangelog.schema`), the use of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import pyarrow as pa

from fastchangelog.errors import InvalidArgument

__all__ = ["Keys", "array_of", "batch_size_of", "rows_of"]


class Keys:
    """Keys of one type: ``what`` names them in messages.

    >>> keys = Keys("key", pa.string())
    >>> keys.is_one("ann"), keys.is_one(["ann", "bob"])
    (True, False)
    >>> keys.of(["ann"]).to_pylist(), keys.one("ann").to_pylist()
    (['ann'], ['ann'])
    """

    def __init__(self, what: str, data_type: pa.DataType) -> None:
        self.what = what
        self.type = data_type
        self.named = bool(pa.types.is_struct(data_type))

    def is_one(self, keys: Any) -> bool:
        """True for one key, false for many."""
        if isinstance(keys, tuple):
            return self.named
        return is_one(keys)

    def one(self, key: Any) -> pa.Array:
        """An array of one key."""
        return array_of(self.what, [key], self.type)

    def many(self, keys: Any) -> pa.Array:
        """An array of many keys."""
        return array_of(f"{self.what}s", keys, self.type)

    def of(self, keys: Any) -> pa.Array:
        """An array of one key, or of many."""
        return self.one(keys) if self.is_one(keys) else self.many(keys)

    def leading(self, bound: Any) -> pa.Array | None:
        """A bound of a scan: None, a key, or the first fields of one."""
        if bound is None:
            return None
        if not self.named:
            return self.one(bound)
        fields = list(self.type)
        given = len(bound) if isinstance(bound, tuple | Mapping) else 0
        names = [field.name for field in fields[:given]]
        if not given or given > len(fields) or (isinstance(bound, Mapping) and set(bound) != set(names)):
            raise InvalidArgument(
                f"{bound!r} is no bound of a scan: give the first fields of "
                f"({', '.join(field.name for field in fields)}), as a dict or a tuple"
            )
        return array_of(self.what, [bound], pa.struct(fields[:given]))


def is_one(data: Any) -> bool:
    """True for one value, false for many; tuples are many."""
    if isinstance(data, str | bytes | bytearray | memoryview | Mapping):
        return True
    if getattr(data, "ndim", None) == 0:  # a scalar of numpy
        return True
    return not (isinstance(data, Iterable) or hasattr(data, "__arrow_c_array__") or hasattr(data, "__array__"))


def batch_size_of(batch_size: int) -> int:
    """A checked number of rows."""
    if batch_size < 1:
        raise InvalidArgument(f"batch_size = {batch_size} is no number of rows; give 1 or more")
    return batch_size


def rows_of(data: Any, wanted: pa.DataType) -> pa.Array:
    """Rows of a record batch or table, columns by name, or of whatever `array_of` takes."""
    arrow = hasattr(data, "__arrow_c_array__") or hasattr(data, "__arrow_c_stream__")
    if not arrow or not pa.types.is_struct(wanted) or isinstance(data, pa.Array | pa.ChunkedArray):
        return array_of("rows", data, wanted)
    table = pa.table(data)
    missing = [field.name for field in wanted if field.name not in table.column_names]
    if missing:
        raise InvalidArgument(f"rows have no column `{missing[0]}`; {wanted} was declared")
    columns = [array_of(f"column `{field.name}`", table[field.name], field.type) for field in wanted]
    return pa.StructArray.from_arrays(columns, fields=list(wanted))


def array_of(what: str, data: Any, wanted: pa.DataType) -> pa.Array:
    """Data of any usual kind as an Arrow array of the wanted type."""
    try:
        if isinstance(data, pa.ChunkedArray):
            array = pa.concat_arrays(data.chunks) if data.num_chunks else pa.array([], data.type)
        elif isinstance(data, pa.Array):
            array = data
        elif hasattr(data, "__arrow_c_array__"):
            array = pa.array(data)
        elif hasattr(data, "__arrow_c_stream__"):
            return array_of(what, pa.chunked_array(data), wanted)
        else:
            if isinstance(data, str | bytes | Mapping):
                raise InvalidArgument(f"{what}: a {type(data).__name__} is one value; many keys need as many")
            if not hasattr(data, "__array__"):
                data = list(data)
            array = pa.array(_by_name(data, wanted), type=wanted)
        return array if array.type == wanted else array.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidArgument):
            raise
        cause = " ".join(str(error).split())
        raise InvalidArgument(f"{what}: this is not {wanted}, as was declared: {cause}") from None


def _by_name(data: Any, wanted: pa.DataType) -> Any:
    """Tuples as dicts, where structs are wanted: Arrow reads tuples otherwise."""
    if not pa.types.is_struct(wanted) or not isinstance(data, list | Set):
        return data
    names = [field.name for field in wanted]
    rows = []
    for row in data:
        if isinstance(row, tuple):
            if len(row) != len(names):
                raise InvalidArgument(f"{row!r} has {len(row)} fields, not the {len(names)} of {wanted}")
            row = dict(zip(names, row))
        elif isinstance(row, Mapping) and not set(row) <= set(names):
            raise InvalidArgument(f"{row!r} has fields that {wanted} has not")
        rows.append(row)
    return rows
