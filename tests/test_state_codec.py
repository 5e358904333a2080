"""Keys and values of a processor's state, between Arrow and bytes: exact, of any version, strings of any bytes."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fastchangelog._internal import StateCodec
from fastchangelog.errors import CorruptDataError, InvalidArgumentError, SchemaMismatchError

NAN = float("nan")
LONG = 2**63
PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
#: Of each type a state may have: the least, the greatest and odd values.
VALUES: list[tuple[Any, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-128, 127, None]),
    (pa.int16(), [-(2**15), 2**15 - 1, None]),
    (pa.int32(), [-(2**31), 2**31 - 1, None]),
    (pa.int64(), [-LONG, LONG - 1, 0, None]),
    (pa.float32(), [0.0, -0.0, NAN, float("inf"), 1.100000023841858, None]),
    (pa.float64(), [0.0, -0.0, NAN, float("-inf"), 5e-324, None]),
    (pa.decimal128(38, 18), [Decimal("-99999999999999999999.999999999999999999"), Decimal("1E-18"), None]),
    (pa.decimal128(5, 0), [Decimal(99999), Decimal(-1), None]),
    (pa.string(), ["", "grüße", "x" * 100, "a\0b", None]),
    (pa.binary(), [b"", b"\xff\0", None]),
    (pa.date32(), [0, -719162, 2932896, None]),
    (pa.timestamp("us", "UTC"), [-LONG + 1, LONG - 1, None]),
    (pa.timestamp("us"), [0, -1, None]),
    (pa.duration("us"), [-LONG + 1, LONG - 1, None]),
    (pa.time64("ns"), [0, 86399999999999, None]),
    (PAIR, [{"a": 1, "b": None}, {"a": None, "b": ""}, None]),
    (pa.list_(PAIR), [[], [None], [{"a": 1, "b": "x"}, None], None]),
    (pa.map_(pa.string(), pa.list_(pa.float64())), [[], [("b", [-0.0, None]), ("a", None)], None]),
    (pa.list_(pa.list_(pa.map_(pa.int64(), pa.date32()))), [[[[(1, None)]], [], None], None]),
]


def exactly(array: pa.Array) -> list[Any]:
    """The values, so that -0.0 differs from 0.0 and NaN equals itself."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return struct.pack(">d", value)
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value

    flat = {pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("us"), pa.time64("ns")}
    return [plain(v) for v in (array.cast(pa.int64()) if array.type in flat else array).to_pylist()]


@pytest.mark.parametrize(("dtype", "values"), VALUES, ids=lambda part: str(part) if not isinstance(part, list) else "")
def test_values_of_every_type_come_back_bit_by_bit(dtype: Any, values: list[Any]) -> None:
    array = pa.array(values, dtype)
    codec = StateCodec(pa.string(), dtype)
    for given in (array, array.slice(1), array.slice(0, 0)):
        encoded = codec.encode_values(given)
        assert encoded.type == pa.binary()
        assert encoded.null_count == given.null_count
        found = codec.decode_values(encoded)
        assert found.type == dtype
        assert exactly(found) == exactly(given)
    row = pa.struct([("f", dtype)])
    rows = pa.StructArray.from_arrays([array], fields=list(row))
    codec = StateCodec(pa.string(), row)
    encoded = codec.encode_values(rows)
    assert encoded.null_count == 0, "a null field is part of a value"
    assert exactly(codec.decode_values(encoded).field(0)) == exactly(array)


@pytest.mark.parametrize(("dtype", "values"), VALUES, ids=lambda part: str(part) if not isinstance(part, list) else "")
def test_keys_of_every_type_come_back_in_their_normal_form(dtype: Any, values: list[Any]) -> None:
    schema = pa.schema([("k", dtype), ("n", pa.int64())])
    codec = StateCodec(schema, pa.int64())
    batch = pa.record_batch([pa.array(values, dtype), pa.array(range(len(values)), pa.int64())], schema=schema)
    keys = codec.encode_keys(batch)
    assert len(set(keys.to_pylist())) == len(values), "a null is a key too"
    found = codec.decode_keys(keys)
    assert found.type == pa.struct(schema)
    assert found.field(1).to_pylist() == list(range(len(values)))
    if "float" not in str(dtype) and "double" not in str(dtype) and not pa.types.is_map(dtype):
        assert exactly(found.field(0)) == exactly(batch.column(0))


def test_equal_keys_have_equal_bytes_in_order() -> None:
    codec = StateCodec(pa.float64(), pa.int64())
    keys = codec.encode_keys(pa.array([-0.0, 0.0, NAN, struct.unpack(">d", b"\x7f\xf8\0\0\0\0\0\x07")[0], -1.5]))
    zero, other, nan, odd, negative = keys.to_pylist()
    assert zero == other
    assert nan == odd
    assert negative < zero < nan
    with pytest.raises(InvalidArgumentError, match="a key is null"):
        codec.encode_keys(pa.array([None], pa.float64()))


def test_strings_are_bytes_that_need_not_be_utf8() -> None:
    raw = pa.array([b"a\xff", b"", None, "é".encode()], pa.binary())
    codec = StateCodec(pa.schema([("k", pa.string())]), pa.string())
    values = codec.decode_values(codec.encode_values(raw.view(pa.string())))
    assert values.type == pa.string()
    assert values.view(pa.binary()).equals(raw)
    keys = pa.StructArray.from_arrays([raw.view(pa.string())], names=["k"])
    found = codec.decode_keys(codec.encode_keys(keys))
    assert found.field(0).type == pa.string()
    assert found.field(0).view(pa.binary()).equals(raw)
    nested = pa.struct([("s", pa.string()), ("l", pa.list_(pa.string()))])
    lists = pa.ListArray.from_arrays([0, 1, 1, 1, 4], raw.view(pa.string()))
    rows = pa.StructArray.from_arrays([raw.view(pa.string()), lists], fields=list(nested))
    codec = StateCodec(pa.string(), nested)
    found = codec.decode_values(codec.encode_values(rows))
    assert found.type == nested
    assert found.field(0).view(pa.binary()).equals(raw)
    assert found.field(1).values.view(pa.binary()).equals(raw)


def test_columns_of_other_types_are_refused() -> None:
    codec = StateCodec(pa.string(), pa.string())
    for call in (codec.encode_values, codec.encode_keys):
        with pytest.raises(InvalidArgumentError, match="type binary, but string is declared"):
            call(pa.array([b"x"], pa.binary()))
        with pytest.raises(InvalidArgumentError, match="type bigint, but string is declared"):
            call(pa.array([1]))
    for wrong in (pa.array(["x"]), pa.array([b"x"], pa.large_binary()), pa.array([1])):
        with pytest.raises(InvalidArgumentError, match=f"`values` is an array of type {'Utf8|LargeBinary|Int64'}"):
            codec.decode_values(wrong)
    with pytest.raises(TypeError, match="not an Arrow array"):
        codec.decode_values([b"x"])


def test_values_of_earlier_versions_are_converted() -> None:
    first = pa.struct([("n", pa.int32()), ("gone", pa.string()), ("in", pa.struct([("x", pa.float32())]))])
    second = pa.struct([("in", pa.struct([("y", pa.string()), ("x", pa.float64())])), ("n", pa.int64())])
    third = pa.struct([("n", pa.decimal128(20, 1)), ("in", second.field("in").type), ("new", pa.list_(pa.int8()))])
    old = StateCodec(pa.string(), first).encode_values(
        pa.array([{"n": 2**31 - 1, "gone": "x", "in": {"x": 1.5}}, {"n": None, "gone": None, "in": None}], first)
    )
    newer = StateCodec(pa.string(), second, [first, second]).encode_values(
        pa.array([{"in": {"y": "é", "x": 0.1}, "n": -LONG}], second)
    )
    codec = StateCodec(pa.string(), third, [first, second, third])
    newest = codec.encode_values(pa.array([{"n": Decimal("0.5"), "in": None, "new": [1]}, None], third))
    found = codec.decode_values(pa.concat_arrays([newest, old, newer]))
    assert found.type == third
    assert found.to_pylist() == [
        {"n": Decimal("0.5"), "in": None, "new": [1]},
        None,
        {"n": Decimal("2147483647.0"), "in": {"y": None, "x": 1.5}, "new": None},
        {"n": None, "in": None, "new": None},
        {"n": Decimal("-9223372036854775808.0"), "in": {"y": "é", "x": 0.1}, "new": None},
    ]


def test_refused_changes_are_named_field_by_field() -> None:
    old = pa.struct([("n", pa.int64()), ("tags", pa.list_(pa.field("element", pa.string())))])
    new = pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.field("element", pa.int32()))), ("ok", pa.int8())])
    with pytest.raises(SchemaMismatchError) as caught:
        StateCodec(pa.string(), new, [old, new])
    text = str(caught.value)
    assert "field `n` was bigint and is now int" in text
    assert "field `tags.element` was string and is now int" in text
    assert "`ok`" not in text
    with pytest.raises(InvalidArgumentError, match="is not among its versions"):
        StateCodec(pa.string(), new, [old])


def test_bytes_that_are_no_value_are_damage() -> None:
    codec = StateCodec(pa.string(), pa.struct([("n", pa.int64())]))
    for junk in (b"", b"\x05", b"\0\0", b"\xff" * 12):
        with pytest.raises(CorruptDataError):
            codec.decode_values(pa.array([junk], pa.binary()))
