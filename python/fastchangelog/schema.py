"""Types of keys and values, as users write them.

Owns: reading DDL texts, PySpark types and Arrow types into one Arrow type each.
Does not own: which types can be kept (the core says so), data.

A text without field names (``"long"``) is a plain type; one with names (``"n long, last timestamp"``) is a struct.
Comments, and what a text or a PySpark type says of nulls, are read over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import DataTypeLike

__all__ = ["arrow_type"]

_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

#: The units of Spark's interval types; `interval day to second` and its parts are one Arrow type.
_DAY_TIME = ("day", "hour", "minute", "second")
_YEAR_MONTH = ("year", "month")

_TOKEN = re.compile(
    r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<mark>[<>(),:]))"
)


def arrow_type(what: str, schema: DataTypeLike) -> pa.DataType:
    """The Arrow type of a DDL text, of a PySpark type, or of an Arrow type or schema; ``what`` is for messages.

    >>> arrow_type("key", "long")
    DataType(int64)
    >>> arrow_type("value", "n long, tags array<string>")
    StructType(struct<n: int64, tags: list<element: string>>)
    >>> arrow_type("value", "n lnog")
    Traceback (most recent call last):
    fastchangelog.errors.InvalidArgumentError: value: `lnog` in `n lnog` is no type
    """
    if isinstance(schema, pa.DataType):
        return schema
    if isinstance(schema, pa.Schema):
        return pa.struct(list(schema))
    if hasattr(schema, "simpleString"):  # PySpark's types, without importing PySpark
        schema = _text_of(schema)
    if not isinstance(schema, str):
        raise InvalidArgumentError(
            f'{what}: a {type(schema).__name__} is no schema; write "long" or "n long, last timestamp", or give a '
            "PySpark or Arrow type"
        )
    return _Parser(what, schema).parse()


def _text_of(dtype: Any) -> str:
    """The text of a PySpark type: its `simpleString`, with the names of fields in quotes."""
    if hasattr(dtype, "fields"):
        fields = ("`" + field.name.replace("`", "``") + "`:" + _text_of(field.dataType) for field in dtype.fields)
        return f"struct<{','.join(fields)}>"
    if hasattr(dtype, "elementType"):
        return f"array<{_text_of(dtype.elementType)}>"
    if hasattr(dtype, "keyType"):
        return f"map<{_text_of(dtype.keyType)},{_text_of(dtype.valueType)}>"
    return str(dtype.simpleString())


class _Parser:
    """Reads one text, once."""

    def __init__(self, what: str, text: str) -> None:
        self.what = what
        self.text = text
        self.tokens = list(self._tokens())
        self.at = 0

    def _tokens(self) -> Iterator[tuple[str, str]]:
        place, text = 0, self.text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise self.wrong(f"`{text[place:].strip()[:1]}` is not understood")
            for kind in ("word", "quoted", "text", "mark"):
                if found[kind] is not None:
                    yield kind, found[kind].replace("``", "`") if kind == "quoted" else found[kind]
            place = found.end()

    def wrong(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self.what}: {why}")

    def parse(self) -> pa.DataType:
        if not self.tokens:
            raise self.wrong("the schema is empty")
        # One word, or one word with parameters, or an interval, is a type; everything else is fields.
        plain = self.tokens[0][0] == "word" and (
            len(self.tokens) == 1 or self.tokens[1][1] in ("<", "(") or self.is_interval(0)
        )
        found = self.type() if plain else pa.struct(self.fields(None))
        if self.at < len(self.tokens):
            raise self.wrong(f"`{self.tokens[self.at][1]}` in `{self.text}` is one word too many")
        return found

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self, mark: str | None = None) -> str:
        kind, token = self.peek()
        if kind == "end" or (mark is not None and token != mark):
            wanted = f"`{mark}`" if mark else "a name or a type"
            raise self.wrong(f"{wanted} is missing in `{self.text}`")
        if kind == "text":
            raise self.wrong(f"{token} in `{self.text}` is no name and no type")
        self.at += 1
        return token

    def fields(self, end: str | None) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while True:
            if self.peek()[0] == "mark":
                raise self.wrong(f"`{self.peek()[1]}` in `{self.text}` stands where a name is missing")
            name = self.take()
            if self.peek()[1] == ":":
                self.take()
            fields.append(pa.field(name, self.type()))
            self.skip_remarks()
            if self.peek()[1] == ",":
                self.take()
                continue
            if end is not None:
                self.take(end)
            names = [field.name for field in fields]
            for name in names:
                if names.count(name) > 1:
                    raise self.wrong(f"`{name}` stands twice in `{self.text}`")
            return fields

    def skip_remarks(self) -> None:
        """Skips ``not null`` and ``comment '…'``."""
        if [token.lower() for _, token in self.tokens[self.at : self.at + 2]] == ["not", "null"]:
            self.at += 2
        if self.peek()[1].lower() == "comment" and [kind for kind, _ in self.tokens[self.at :]][1:2] == ["text"]:
            self.at += 2

    def type(self) -> pa.DataType:
        word = self.take()
        name = word.lower()
        if name in ("decimal", "dec", "numeric"):
            return self.decimal()
        if name == "time":
            return self.time()
        if name == "interval" and self.is_interval(self.at - 1):
            return self.interval()
        if name == "array":
            self.take("<")
            element = self.type()
            self.take(">")
            return pa.list_(pa.field("element", element))
        if name == "map":
            self.take("<")
            key = self.type()
            self.take(",")
            value = self.type()
            self.take(">")
            return pa.map_(key, value)
        if name == "struct":
            self.take("<")
            return pa.struct(self.fields(">"))
        if name not in _TYPES:
            raise self.wrong(f"`{word}` in `{self.text}` is no type")
        return _TYPES[name]

    def time(self) -> pa.DataType:
        """Spark's `time` and `time(6)` are nanoseconds in Arrow; `time(us)` is what has microseconds."""
        unit = "ns"
        if self.peek()[1] == "(":
            self.take()
            unit = "us" if self.take() == "us" else "ns"
            self.take(")")
        return pa.time64(unit)

    def is_interval(self, at: int) -> bool:
        """True if an interval type stands there: no other type is named after a unit."""
        words = [token.lower() for _, token in self.tokens[at : at + 2]]
        return len(words) == 2 and words[0] == "interval" and words[1] in (*_DAY_TIME, *_YEAR_MONTH)

    def interval(self) -> pa.DataType:
        units = [self.take().lower()]
        if self.peek()[1].lower() == "to":
            self.take()
            units.append(self.take().lower())
        if all(unit in _DAY_TIME for unit in units):
            return pa.duration("us")
        if all(unit in _YEAR_MONTH for unit in units):
            raise self.wrong(f"`interval {' to '.join(units)}` has no Arrow type in Python; count the months in an int")
        raise self.wrong(f"`interval {' to '.join(units)}` in `{self.text}` is no type")

    def decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self.peek()[1] == "(":
            self.take()
            precision = self.number()
            if self.peek()[1] == ",":
                self.take()
                scale = self.number()
            self.take(")")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise self.wrong(
                f"decimal({precision},{scale}) in `{self.text}` is beyond 38 digits, or scale beyond precision"
            )
        return pa.decimal128(precision, scale)

    def number(self) -> int:
        token = self.take()
        if not token.isdigit():
            raise self.wrong(f"`{token}` in `{self.text}` is no number")
        return int(token)
