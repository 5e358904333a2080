"""Python's, numpy's and Arrow's data as the Arrow arrays that a changelog takes.

Owns: the conversion and its errors; whether anybody can change the memory of an array. Does not own: which key groups a
writer takes, and which memory it refers to (the core).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import ArrowArrayLike, BinaryArrayLike

__all__ = ["bounds_of", "groups_of", "values_of"]


def bounds_of(key_groups: range) -> tuple[int, int]:
    """First key group, and one past the last."""
    if not isinstance(key_groups, range) or key_groups.step != 1:
        raise InvalidArgumentError(f"key groups are a range with step 1, such as range(0, 128), not {key_groups!r}")
    return key_groups.start, max(key_groups.start, key_groups.stop)


def groups_of(groups: ArrowArrayLike) -> pa.Array:
    """Key groups as an array of uint16."""
    array = pa.array(groups) if not isinstance(groups, pa.Array | pa.ChunkedArray) else groups
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == pa.uint16():
        return array
    try:
        return array.cast(pa.uint16())
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"key groups are integers from 0 to 32767: {error}") from None


def values_of(values: BinaryArrayLike) -> Sequence[tuple[pa.Array, int]]:
    """Byte strings as arrays of a binary type. The number is how many bytes a reference to the array would keep
    allocated; 0 if they may change."""
    if isinstance(values, tuple) and len(values) == 2:
        array = _from_offsets(*values)
        return [(array, _held_by(array) if isinstance(values[1], bytes | pa.Buffer) else 0)]
    made_here = isinstance(values, list)
    return [(array, _held_by(array, made_here)) for array in _arrays_of(values)]


def _held_by(array: pa.Array, made_here: bool = False) -> int:
    """The size of the largest buffer around the values; 0 if a program may write to one of these buffers.

    pyarrow reports memory of its own as mutable, exactly like memory that it wraps, such as numpy's.
    """
    buffer = array.buffers()[-1] if len(array) else None
    size = 0
    while buffer is not None:
        if buffer.is_mutable and not made_here:
            return 0
        size = max(size, buffer.size)
        buffer = buffer.parent
    return size


def _made_of(values: Any) -> Any:
    try:
        return pa.array(values) if hasattr(values, "__arrow_c_array__") else pa.array(values, pa.binary())
    except (pa.ArrowException, TypeError) as error:
        raise InvalidArgumentError(f"values are byte strings: {error}") from None


def _arrays_of(values: Any) -> Sequence[pa.Array]:
    if isinstance(values, pa.ChunkedArray):
        return [part for chunk in values.chunks for part in _arrays_of(chunk)]
    array: Any = values if isinstance(values, pa.Array) else _made_of(values)
    if isinstance(array, pa.ChunkedArray):
        return _arrays_of(array)
    if not (
        pa.types.is_binary(array.type)
        or pa.types.is_large_binary(array.type)
        or pa.types.is_fixed_size_binary(array.type)
    ):
        try:
            array = array.cast(pa.large_binary())
        except pa.ArrowException as error:
            raise InvalidArgumentError(f"values of type {array.type} are not bytes: {error}") from None
    return [array]


def _from_offsets(offsets: Any, buffer: Any) -> pa.Array:
    ends = offsets if isinstance(offsets, pa.Array) else pa.array(offsets)
    if ends.type not in (pa.int32(), pa.int64()):
        try:
            ends = ends.cast(pa.int64())
        except pa.ArrowException as error:
            raise InvalidArgumentError(f"offsets are integers: {error}") from None
    if len(ends) == 0 or ends.null_count:
        raise InvalidArgumentError("offsets are one more than the values, without nulls; give [0] for none")
    kind = pa.binary() if ends.type == pa.int32() else pa.large_binary()
    buffers = [None, ends.buffers()[1], pa.py_buffer(buffer)]
    try:
        array = pa.Array.from_buffers(kind, len(ends) - 1, buffers, 0, ends.offset)
        array.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"offsets do not fit the buffer: {error}") from None
    return array
