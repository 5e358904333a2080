"""Schemas as texts: what users write for their states, and what catalogs keep.

Owns: Spark's DDL of columns ⇄ Spark's types, without a JVM: workers have none.
Does not own: which types a state can keep (`state_values`), Arrow types of DDL texts (`fastchangelog.schema`).

A text is a list of columns, as Spark's `parseTableSchema` takes it: ``n long, `last seen` timestamp not null``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T

__all__ = ["ddl_text", "parse_ddl"]

_FLAT: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "byte": T.ByteType(),
    "smallint": T.ShortType(),
    "short": T.ShortType(),
    "int": T.IntegerType(),
    "integer": T.IntegerType(),
    "bigint": T.LongType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "real": T.FloatType(),
    "double": T.DoubleType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ltz": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "variant": T.VariantType(),
    "void": T.NullType(),
}

_DAY_TIME = {"day": 0, "hour": 1, "minute": 2, "second": 3}
_YEAR_MONTH = {"year": 0, "month": 1}

_TOKEN = re.compile(
    r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<mark>[<>(),:]))"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def parse_ddl(text: str) -> T.StructType:
    """The columns of a DDL text; errors as Spark's own for it.

    >>> parse_ddl("n long, tags array<string> not null").simpleString()
    'struct<n:bigint,tags:array<string>>'
    >>> parse_ddl("n lnog")
    Traceback (most recent call last):
    pyspark.errors.exceptions.base.PySparkRuntimeError: Error parsing string schema: [UNSUPPORTED_DATATYPE] \
Unsupported data type "LNOG" in `n lnog`. SQLSTATE: 0A000
    """
    return _Parser(text).parse()


def ddl_text(struct: T.StructType) -> str:
    """The text that `parse_ddl` reads the same columns from.

    >>> ddl_text(T.StructType([T.StructField("n", T.LongType()), T.StructField("a b", T.StringType(), False)]))
    'n bigint, `a b` string not null'
    """
    return ", ".join(f"{_name(f.name)} {_type_text(f.dataType)}{_null(f)}" for f in struct.fields)


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _null(field: T.StructField) -> str:
    return "" if field.nullable else " not null"


def _type_text(dtype: T.DataType) -> str:
    if isinstance(dtype, T.ArrayType):
        return f"array<{_type_text(dtype.elementType)}>"
    if isinstance(dtype, T.MapType):
        return f"map<{_type_text(dtype.keyType)},{_type_text(dtype.valueType)}>"
    if isinstance(dtype, T.StructType):
        fields = ",".join(f"{_name(f.name)}:{_type_text(f.dataType)}{_null(f)}" for f in dtype.fields)
        return f"struct<{fields}>"
    return dtype.simpleString()


class _Parser:
    """Reads one text, once."""

    def __init__(self, text: str) -> None:
        self.source = text
        self.tokens = list(self._tokens())
        self.at = 0

    def _tokens(self) -> Iterator[tuple[str, str]]:
        place, text = 0, self.source.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise self.wrong(f"`{text[place:].strip()[:1]}` is not understood")
            for kind in ("word", "quoted", "text", "mark"):
                if found[kind] is not None:
                    yield kind, found[kind].replace("``", "`") if kind == "quoted" else found[kind]
            place = found.end()

    def wrong(self, why: str) -> PySparkRuntimeError:
        return PySparkRuntimeError(
            f"Error parsing string schema: [PARSE_SYNTAX_ERROR] Syntax error: {why} in `{self.source}`. SQLSTATE: 42601"
        )

    def unsupported(self, name: str) -> PySparkRuntimeError:
        return PySparkRuntimeError(
            f'Error parsing string schema: [UNSUPPORTED_DATATYPE] Unsupported data type "{name.upper()}" in '
            f"`{self.source}`. SQLSTATE: 0A000"
        )

    def parse(self) -> T.StructType:
        fields = self.fields()
        if self.at < len(self.tokens):
            raise self.wrong(f"`{self.tokens[self.at][1]}` is one word too many")
        return T.StructType(fields)

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ("end", "")

    def take(self, kinds: tuple[str, ...], what: str) -> str:
        kind, token = self.peek()
        if kind not in kinds:
            raise self.wrong(f"{what} is missing {'at the end' if kind == 'end' else f'before `{token}`'}")
        self.at += 1
        return token

    def mark(self, mark: str) -> None:
        if self.peek() != ("mark", mark):
            raise self.wrong(f"`{mark}` is missing")
        self.at += 1

    def skip(self, kind: str, *words: str) -> bool:
        """Takes these tokens if they stand next."""
        if all(self.peek(i)[0] == kind and self.peek(i)[1].lower() == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def fields(self) -> list[T.StructField]:
        fields: list[T.StructField] = []
        while True:
            name = self.take(("word", "quoted"), "a name")
            self.skip("mark", ":")
            dtype = self.type()
            nullable = not self.skip("word", "not", "null")
            if self.skip("word", "comment"):
                self.take(("text",), "the text of a comment")
            fields.append(T.StructField(name, dtype, nullable))
            if not self.skip("mark", ","):
                return fields

    def type(self) -> T.DataType:
        word = self.take(("word",), "a type")
        name = word.lower()
        if name in _FLAT:
            return _FLAT[name]
        if name == "string":
            return self.string()
        if name in ("decimal", "dec", "numeric"):
            return self.decimal()
        if name in ("char", "character", "varchar"):
            self.mark("(")
            length = self.number()
            self.mark(")")
            return T.VarcharType(length) if name == "varchar" else T.CharType(length)
        if name == "array":
            self.mark("<")
            element = self.type()
            self.mark(">")
            return T.ArrayType(element)
        if name == "map":
            self.mark("<")
            key = self.type()
            self.mark(",")
            value = self.type()
            self.mark(">")
            return T.MapType(key, value)
        if name == "struct":
            return self.struct()
        if name == "interval":
            return self.interval()
        if name == "time" and hasattr(T, "TimeType"):
            return self.time()
        if name in ("geometry", "geography") and hasattr(T, "GeometryType"):
            return self.spatial(T.GeometryType if name == "geometry" else T.GeographyType)
        raise self.unsupported(word)

    def struct(self) -> T.StructType:
        self.mark("<")
        if self.skip("mark", ">"):
            return T.StructType([])
        fields = self.fields()
        self.mark(">")
        return T.StructType(fields)

    def string(self) -> T.StringType:
        if self.skip("word", "collate"):
            return T.StringType(self.take(("word", "quoted"), "the name of a collation"))
        return T.StringType()

    def decimal(self) -> T.DecimalType:
        precision, scale = 10, 0
        if self.skip("mark", "("):
            precision = self.number()
            if self.skip("mark", ","):
                scale = self.number()
            self.mark(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise self.wrong(f"decimal({precision},{scale}) is beyond 38 digits, or scale beyond precision")
        return T.DecimalType(precision, scale)

    def time(self) -> T.DataType:
        precision = 6
        if self.skip("mark", "("):
            precision = self.number()
            self.mark(")")
        return T.TimeType(precision)

    def spatial(self, make: Callable[[int | str], T.DataType]) -> T.DataType:
        self.mark("(")
        srid: int | str = "ANY" if self.skip("word", "any") else self.number()
        self.mark(")")
        return make(srid)

    def interval(self) -> T.DataType:
        if self.peek()[1].lower() not in (*_DAY_TIME, *_YEAR_MONTH):
            return T.CalendarIntervalType()
        start = self.take(("word",), "a unit of an interval").lower()
        end = self.take(("word",), "a unit of an interval").lower() if self.skip("word", "to") else start
        for units, make in ((_DAY_TIME, T.DayTimeIntervalType), (_YEAR_MONTH, T.YearMonthIntervalType)):
            if start in units and end in units:
                return make(units[start], units[end])
        raise self.unsupported(f"interval {start} to {end}")

    def number(self) -> int:
        token = self.take(("word",), "a number")
        if not token.isdigit():
            raise self.wrong(f"`{token}` is no number")
        return int(token)
