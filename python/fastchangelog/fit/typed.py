"""Python's, numpy's and Arrow's data as Arrow arrays of declared types.

Owns: the conversion of one key or value, of many, of rows, and the errors for data that does not fit.
Does not own: the rule for what fits (`values`, `arrays`), reading schemas (`fastchangelog.schema`), the use of
the arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.fit.arrays import array_of, check_readable, fit_all, fit_columns, is_frame, is_temporal
from fastchangelog.fit.misfit import Misfit
from fastchangelog.fit.values import is_list, value_fit

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, KeyLike, RowsLike, ValueLike

__all__ = ["Typed", "batch_size_of", "many_of", "pairs_of", "rows_of"]

_REFUSED = (Misfit, pa.ArrowException, TypeError, ValueError, OverflowError)


class Typed:
    """Keys or values of one type, which Python can read back: ``what`` names one of them in messages.

    >>> keys = Typed("key", pa.string())
    >>> keys.many(["ann"]).to_pylist(), keys.one("ann").to_pylist()
    (['ann'], ['ann'])
    >>> Typed("key", pa.list_(pa.int64())).one([1, 2]).to_pylist()
    [[1, 2]]
    """

    def __init__(self, what: str, data_type: pa.DataType) -> None:
        self.what = what
        self.type = data_type
        self._plain, self._convert = value_fit(data_type)
        self._has_times = is_temporal(data_type)

    def one(self, value: KeyLike | ValueLike) -> pa.Array:
        """An array of one value."""
        try:
            if type(value) in self._plain:
                return pa.array([value], self.type)
            return pa.array([self._convert(value)], self.type)
        except _REFUSED as error:
            many = not is_list(self.type) and _is_many(value)
            hint = "; the methods that end in _many take many at once" if many else ""
            raise _misfit(self.what, self.type, self._why(value) or error, hint) from None

    def found(self, value: object) -> pa.Array | None:
        """As `one`, to look for; None for what cannot be there, since it does not fit or is null."""
        try:
            found = self.one(value)
        except InvalidArgumentError:
            return None
        return None if found.null_count and not pa.types.is_null(self.type) else found

    def many(self, data: ArrowArrayLike) -> pa.Array:
        """An array of many values."""
        return self._readable(f"{self.what}s", many_of(f"{self.what}s", data, self.type))

    def rows(self, data: RowsLike) -> pa.Array:
        """As `many`, of tables the columns that the type has."""
        return self._readable(f"{self.what}s", rows_of(data, self.type, f"{self.what}s"))

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
        return Typed(self.what, pa.struct(fields[:given])).one(bound)

    def _why(self, value: object) -> Misfit | None:
        """Why a value does not fit, if that is clearer than Arrow's error."""
        try:
            self._convert(value)
        except Misfit as misfit:
            return misfit
        except _REFUSED:
            pass
        return None

    def _readable(self, what: str, array: pa.Array) -> pa.Array:
        if self._has_times:
            try:
                check_readable(array)
            except Misfit as misfit:
                raise _misfit(what, self.type, misfit) from None
        return array


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
    """Rows of a record batch, table or frame, columns by name, or of what `many_of` takes; ``what`` is for messages."""
    if not _is_table(data) or not pa.types.is_struct(wanted) or isinstance(data, pa.Array | pa.ChunkedArray):
        return many_of(what, data, wanted)
    return _columns(what, data, wanted, others=True)


def many_of(what: str, data: ArrowArrayLike, wanted: pa.DataType) -> pa.Array:
    """Data of any usual kind as an Arrow array of the wanted type."""
    if is_frame(data) and pa.types.is_struct(wanted):
        return _columns(what, data, wanted, others=False)
    try:
        if not _is_many(data):
            raise InvalidArgumentError(
                f"{what}: a {type(data).__name__} is one value; give an array or a list, or call the method without "
                "_many, if there is one"
            )
        return fit_all(array_of(data), wanted)
    except _REFUSED as error:
        raise _misfit(what, wanted, error) from None


def _columns(what: str, data: Any, wanted: pa.StructType, *, others: bool) -> pa.Array:
    try:
        return fit_columns(data, wanted, others=others)
    except _REFUSED as error:
        raise _misfit(what, wanted, error) from None


def _is_table(data: object) -> bool:
    return hasattr(data, "__arrow_c_array__") or hasattr(data, "__arrow_c_stream__") or is_frame(data)


def _is_many(data: object) -> bool:
    if getattr(data, "ndim", None) == 0:  # a scalar of numpy
        return False
    if isinstance(data, str | bytes | bytearray | memoryview | Mapping):
        return False
    return isinstance(data, Iterable) or any(
        hasattr(data, name) for name in ("__arrow_c_array__", "__arrow_c_stream__", "__array__")
    )


def _misfit(what: str, wanted: pa.DataType, error: Exception, hint: str = "") -> InvalidArgumentError:
    if isinstance(error, InvalidArgumentError):
        return error
    cause = " ".join(str(error).split())
    return InvalidArgumentError(f"{what}: this is not {wanted}, the declared type: {cause}{hint}")
