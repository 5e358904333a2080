"""Arrow arrays with hostile contents, into everything that takes Arrow data.

Called as `python -m support.hostile_arrays FOLDER SEED EXAMPLES`.

Owns: arrays made of raw buffers, C structs with wrong counts, and what must hold of the answers: a clean error, or the
right result.  Does not own: seeing a crash of the interpreter, which is why it is a program (`test_hostile_arrays.py`).
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import fastchangelog as fc
from fastchangelog import _internal
from fastchangelog.errors import CorruptDataError, InternalError
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json

FLAT: list[Any] = [
    pa.string(),
    pa.binary(),
    pa.large_string(),
    pa.large_binary(),
    pa.bool_(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float64(),
    pa.decimal128(20, 4),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.duration("us"),
    pa.null(),
    pa.string_view(),
    pa.binary_view(),
]
NESTED: list[Any] = [
    pa.list_(pa.string()),
    pa.list_(pa.int32()),
    pa.large_list(pa.binary()),
    pa.struct([("s", pa.string()), ("n", pa.int64())]),
    pa.list_(pa.struct([("s", pa.string()), ("l", pa.list_(pa.string()))])),
    pa.map_(pa.string(), pa.int32()),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.binary()),
    pa.list_(pa.int16(), 2),
    pa.list_view(pa.int8()),
    pa.run_end_encoded(pa.int32(), pa.int8()),
    pa.dense_union([pa.field("a", pa.int8())]),
]
seen: Counter[str] = Counter()


@st.composite
def arrays(draw: Any, dtype: Any, length: int, nulls: bool = True) -> Any:
    """An array of the type; pyarrow refuses some itself, with an `ArrowInvalid`. A null key of a map aborts pyarrow."""
    offset = draw(st.integers(0, 2)) if draw(st.integers(0, 4)) == 0 else 0
    rows = length + offset
    validity = pa.py_buffer(draw(st.binary(min_size=rows // 8 + 1, max_size=rows // 8 + 1)))
    never = pa.types.is_null(dtype) or pa.types.is_union(dtype) or pa.types.is_run_end_encoded(dtype)
    masked = None if never or not nulls or draw(st.booleans()) else validity
    if pa.types.is_dictionary(dtype):
        keys = _raw(draw, dtype.index_type.bit_width // 8, rows)
        indices = pa.Array.from_buffers(dtype.index_type, length, [masked, keys], offset=offset)
        return pa.DictionaryArray.from_arrays(
            indices, draw(arrays(dtype.value_type, draw(st.integers(0, 4)))), safe=False
        )
    if pa.types.is_map(dtype):
        fields = [dtype.key_field, dtype.item_field]
        parts = [draw(arrays(dtype.key_type, rows, nulls=False)), draw(arrays(dtype.item_type, rows))]
        children = [pa.StructArray.from_arrays(parts, fields=fields)]
    else:
        children = [draw(arrays(dtype.field(i).type, rows)) for i in range(dtype.num_fields)]
    buffers = [masked]
    if pa.types.is_string(dtype) or pa.types.is_binary(dtype) or pa.types.is_list(dtype) or pa.types.is_map(dtype):
        buffers.append(_offsets(draw, rows, 4))
    elif pa.types.is_large_string(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_large_list(dtype):
        buffers.append(_offsets(draw, rows, 8))
    elif dtype in (pa.string_view(), pa.binary_view()):
        values = b"".join(draw(_view()) for _ in range(rows))
        buffers += [pa.py_buffer(values), pa.py_buffer(bytes(range(240, 256)) * 2)]
    elif pa.types.is_union(dtype):
        buffers += [_raw(draw, 1, rows), _raw(draw, 4, rows)]
    elif pa.types.is_list_view(dtype):
        buffers += [_raw(draw, 4, rows), _raw(draw, 4, rows)]
    elif dtype.num_fields == 0 and not pa.types.is_null(dtype):
        buffers.append(_raw(draw, max(1, dtype.bit_width // 8), rows))
    if dtype in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        buffers.append(pa.py_buffer(draw(st.binary(max_size=40))))
    if pa.types.is_fixed_size_list(dtype):
        children = [draw(arrays(dtype.value_type, rows * dtype.list_size))]
    return pa.Array.from_buffers(dtype, length, buffers, -1, offset, children)


def _raw(draw: Any, width: int, rows: int) -> Any:
    size = width * rows - (draw(st.integers(0, 9)) == 0)
    return pa.py_buffer(draw(st.binary(min_size=max(0, size), max_size=max(0, size))))


def _offsets(draw: Any, rows: int, width: int) -> Any:
    """Mostly growing; now and then anything."""
    steps = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    values = [sum(steps[:i]) for i in range(rows + 1)]
    if draw(st.integers(0, 3)) == 0:
        values[draw(st.integers(0, rows))] = draw(st.sampled_from([-1, 1, 0, 7, 2**20, 2**31 - 1, -(2**31)]))
    return pa.py_buffer(b"".join(value.to_bytes(width, "little", signed=True) for value in values))


@st.composite
def _view(draw: Any) -> bytes:
    size = draw(st.integers(-1, 20))
    if size > 12:
        place = draw(st.sampled_from([0, 3, 12, 30, -1]))
        prefix = bytes(range(240, 256))[:4]
        return size.to_bytes(4, "little", signed=True) + prefix + bytes(4) + place.to_bytes(4, "little", signed=True)
    return size.to_bytes(4, "little", signed=True) + draw(st.binary(min_size=12, max_size=12))


class _ArrowArray(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("length", "null_count", "offset", "n_buffers", "n_children")]


class Patched:
    """An array of another library, whose struct says `name` is `value`."""

    def __init__(self, array: Any, name: str, value: int) -> None:
        self._made = array.__arrow_c_array__()
        at = ctypes.pythonapi.PyCapsule_GetPointer
        at.restype, at.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self._struct = _ArrowArray.from_address(at(self._made[1], b"arrow_array"))
        self._name, self._was = name, getattr(self._struct, name)
        setattr(self._struct, name, value)

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._made

    def mend(self) -> None:
        """What was not taken is released with the counts that it had."""
        setattr(self._struct, self._name, self._was)


def _attempt(what: str, call: Any) -> Any:
    """The answer, or None after a clean error. A panic is a `BaseException`, and ends the program."""
    try:
        answer = call()
    except (fc.FastChangelogError, pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        if isinstance(error, (CorruptDataError, InternalError)):
            raise
        seen[f"{what}: refused"] += 1
        return None
    seen[f"{what}: taken"] += 1
    return answer


def _spec(dtype: Any) -> str:
    schema = pa.schema([("k", dtype)])
    calls = [AggregateSpec("count", (), None, False, True, "count(1)")]
    result = [("k", dtype), ("n", pa.int64())]
    more = AggregateSpec("last", (0,), None, False, True, "last(k)")
    text = spec_json(1, schema, pa.schema([*result, ("last", dtype)]), [*calls, more])
    try:
        _internal.spec_check(text)
    except fc.FastChangelogError:
        return spec_json(1, schema, pa.schema(result), calls)
    return text


def _split(dtype: Any, batch: Any, rows: int) -> None:
    splitter = _attempt("splitter", lambda: _internal.Splitter(_spec(dtype), 2, 128, 1 << 20))
    if splitter is None:
        return
    payloads = _attempt("split", lambda: splitter.push(batch))
    if payloads is None:
        return
    payloads += splitter.finish()
    counted = [int(pa.ipc.open_stream(payload).schema.metadata[b"rows"]) for _, payload in payloads]
    assert sum(counted) == rows, "each row is in one payload"


def _codec(dtype: Any, array: Any) -> None:
    codec = _attempt("codec", lambda: _internal.StateCodec(pa.schema([("k", dtype)]), dtype))
    if codec is None:
        return
    keys = pa.StructArray.from_arrays([array], names=["k"])
    encoded = _attempt("encode", lambda: (codec.encode_keys(keys), codec.encode_values(array)))
    if encoded is None:
        return
    for found in (codec.decode_keys(encoded[0]), codec.decode_values(encoded[1])):
        assert len(found) == len(array)
        found.validate()


def _rows(dtype: Any, batch: Any, rows: int) -> None:
    """The batch as rows of a processor; the key is nothing, since not every type can be one."""
    schema = pa.schema([("k", dtype)])
    splitter = _attempt("row splitter", lambda: _internal.RowSplitter(0, schema, 1, 128, 1 << 20))
    if splitter is None:
        return
    payloads = _attempt("rows", lambda: splitter.push(batch))
    if payloads is None:
        return
    grouper = _internal.RowGrouper(0, schema, 1 << 20, "/nowhere")
    for _, payload in payloads + splitter.finish():
        grouper.push(payload)
    assert sum(chunk.rows.num_rows for chunk in grouper.finish(5, 1 << 20)) == rows, "each row is in one chunk"


def main(folder: str, number: int, examples: int) -> None:
    states = fc.open_state(folder, options={"file_sync": False})

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=True,
    )
    @given(data=st.data())
    def hostile(data: Any) -> None:
        dtype = data.draw(st.sampled_from([*FLAT, *FLAT, *NESTED]))
        length = data.draw(st.integers(0, 12))
        array = _attempt("pyarrow", lambda: data.draw(arrays(dtype, length)))
        if array is None:
            return
        batch = pa.RecordBatch.from_arrays([array], names=["k"])
        _split(dtype, batch, length)
        _rows(dtype, batch, length)
        _split(dtype, pa.Table.from_batches([batch]), length)
        _codec(dtype, array)
        name = data.draw(st.sampled_from(["length", "offset", "n_buffers", "n_children", "null_count"]))
        value = {"n_buffers": 0, "n_children": 0, "null_count": data.draw(st.integers(-1, 20))}
        patched = Patched(batch, name, value.get(name, data.draw(st.sampled_from([-1, -(2**63), 2**62]))))
        changed = patched._was != getattr(patched._struct, name) and name != "null_count"
        splitter = _attempt("splitter", lambda: _internal.Splitter(_spec(dtype), 2, 128, 1 << 20))
        taken = splitter and _attempt("patched", lambda: splitter.push(patched))
        patched.mend()
        assert not changed or taken is None, f"{name} was changed, and the batch was taken"
        kept = _attempt("declare", lambda: states.value_state(f"{dtype}", key=dtype, value="long"))
        if kept is None:
            return
        numbers = pa.array(range(length), pa.int64())
        # What pyarrow itself makes of such an array, when it casts or prints it, is not of interest.
        native = kept._native
        if _attempt("put", lambda: native.put(array, numbers) or True):
            found = native.get(array)
            assert len(found) == length
            assert found.null_count == 0
            found.validate(full=True)
            for scanned in native.scan(None, None, None, 100):
                # A decimal with too many digits is kept as it came, and is as invalid as before.
                scanned.validate(full="decimal" not in str(dtype))

    hostile()
    states.close(checkpoint=False)
    print(dict(seen))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
