"""Python's, numpy's and Arrow's data as Arrow arrays of declared types.

Owns: the conversion of one key or value, of many, and the errors for data that does not fit.
Does not own: reading schemas (`fastchangelog.schema`), the use of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, RowsLike, ValueLike

__all__ = ["Keys", "batch_size_of", "many_of", "one_of", "pairs_of", "rows_of"]


class Keys:
    """Keys of one type: ``what`` names them in messages.

    >>> keys = Keys("key", pa.string())
    >>> keys.many(["ann"]).to_pylist(), keys.one("ann").to_pylist()
    (['ann'], ['ann'])
    >>> Keys("key", pa.list_(pa.int64())).one([1, 2]).to_pylist()
    [[1, 2]]
    """

    def __init__(self, what: str, data_type: pa.DataType) -> None:
        self.what = what
        self.type = data_type

    def one(self, key: KeyLike) -> pa.Array:
        """An array of one key."""
        return one_of(self.what, key, self.type)

    def many(self, keys: ArrowArrayLike) -> pa.Array:
        """An array of many keys."""
        return many_of(f"{self.what}s", keys, self.type)

    def leading(self, bound: KeyLike | None) -> pa.Array | None:
        """A bound of a scan: None, a key, or the first fields of one."""
        if bound is None:
            return None
        if not pa.types.is_struct(self.type):
            return self.one(bound)
        fields = list(self.type)
        given = len(bound) if isinstance(bound, tuple | Mapping) else 0
        names = [field.name for field in fields[:given]]
        if not given or given > len(fields) or (isinstance(bound, Mapping) and set(bound) != set(names)):
            raise InvalidArgumentError(
                f"{bound!r} is no bound of a scan: give the first fields of "
                f"({', '.join(field.name for field in fields)}), as a dict or a tuple"
            )
        return one_of(self.what, bound, pa.struct(fields[:given]))


def batch_size_of(batch_size: int) -> int:
    """A checked number of rows."""
    if batch_size < 1:
        raise InvalidArgumentError(f"batch_size = {batch_size} is no number of rows; give 1 or more")
    return batch_size


def pairs_of(others: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Keys and values of the arguments of `update`, which are those of `dict.update`; keys need not be hashable."""
    if len(others) > 1:
        raise TypeError(f"update() takes one mapping or one iterable of pairs, not {len(others)}")
    pairs: list[tuple[Any, Any]] = []
    for other in others:
        if isinstance(other, Mapping):
            pairs += other.items()
        elif hasattr(other, "keys"):
            pairs += [(key, other[key]) for key in other.keys()]  # noqa: SIM118
        else:
            pairs += [(key, value) for key, value in other]
    pairs += named.items()
    return [key for key, _ in pairs], [value for _, value in pairs]


def rows_of(data: RowsLike, wanted: pa.DataType, what: str = "rows") -> pa.Array:
    """Rows of a record batch or table, columns by name, or of whatever `many_of` takes; ``what`` is for messages."""
    arrow = hasattr(data, "__arrow_c_array__") or hasattr(data, "__arrow_c_stream__")
    if not arrow or not pa.types.is_struct(wanted) or isinstance(data, pa.Array | pa.ChunkedArray):
        return many_of(what, data, wanted)
    table = pa.table(data)
    missing = [field.name for field in wanted if field.name not in table.column_names]
    if missing:
        raise InvalidArgumentError(f"{what} have no column `{missing[0]}`; {wanted} was declared")
    columns = [many_of(f"column `{field.name}`", table[field.name], field.type) for field in wanted]
    return pa.StructArray.from_arrays(columns, fields=list(wanted))


def one_of(what: str, value: ValueLike, wanted: pa.DataType) -> pa.Array:
    """One value as an array of the wanted type."""
    try:
        return pa.array(_by_name([value], wanted), type=wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        many = not _is_list(wanted) and _is_many(value)
        hint = "; the methods that end in _many take many at once" if many else ""
        raise _misfit(what, wanted, error, hint) from None


def many_of(what: str, data: ArrowArrayLike, wanted: pa.DataType | None) -> pa.Array:
    """Data of any usual kind as an Arrow array of the wanted type; None: of its own."""
    try:
        if isinstance(data, pa.ChunkedArray):
            array = pa.concat_arrays(data.chunks) if data.num_chunks else pa.array([], data.type)
        elif isinstance(data, pa.Array):
            array = data
        elif hasattr(data, "__arrow_c_array__"):
            array = pa.array(data)
        elif hasattr(data, "__arrow_c_stream__"):
            return many_of(what, pa.chunked_array(data), wanted)
        else:
            if isinstance(data, str | bytes | bytearray | memoryview | Mapping) or not _is_many(data):
                raise InvalidArgumentError(
                    f"{what}: a {type(data).__name__} is one value, and many are wanted; give an array or a list, or "
                    "leave out _many in the name of the method, if it has that"
                )
            if not hasattr(data, "__array__"):
                data = list(data)
            array = pa.array(_by_name(data, wanted), type=wanted)
        return array if wanted is None or array.type == wanted else array.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _misfit(what, wanted, error) from None


def _is_many(data: object) -> bool:
    if getattr(data, "ndim", None) == 0:  # a scalar of numpy
        return False
    if isinstance(data, str | bytes | bytearray | memoryview | Mapping):
        return False
    return isinstance(data, Iterable) or hasattr(data, "__arrow_c_array__") or hasattr(data, "__array__")


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype))


def _misfit(what: str, wanted: pa.DataType | None, error: Exception, hint: str = "") -> InvalidArgumentError:
    if isinstance(error, InvalidArgumentError):
        return error
    cause = " ".join(str(error).split())
    return InvalidArgumentError(f"{what}: this is not {wanted}, as was declared: {cause}{hint}")


def _by_name(data: Any, wanted: pa.DataType | None) -> Any:
    """Tuples as dicts, where structs are wanted: Arrow reads tuples otherwise."""
    if wanted is None or not pa.types.is_struct(wanted) or not isinstance(data, list | Set):
        return data
    names = [field.name for field in wanted]
    rows = []
    for row in data:
        if isinstance(row, tuple):
            if len(row) != len(names):
                raise InvalidArgumentError(f"{row!r} has {len(row)} fields, not the {len(names)} of {wanted}")
            row = dict(zip(names, row))
        elif isinstance(row, Mapping) and not set(row) <= set(names):
            raise InvalidArgumentError(f"{row!r} has fields that {wanted} has not")
        rows.append(row)
    return rows
