"""Spark's DDL of types and columns, such as ``n long, `last seen` timestamp not null``, read into a tree of types.

Owns: the grammar, the aliases of types, parameters that are numbers. Does not own: which types exist and what they
become (`schema.arrow` for Arrow, `spark.types.ddl` for Spark), the form of errors.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

__all__ = [
    "DAY_TIME",
    "YEAR_MONTH",
    "DdlError",
    "DdlField",
    "DdlType",
    "UnknownTypeError",
    "decimal_parameters",
    "numbers",
    "read_columns",
    "read_schema",
]

DAY_TIME = ("day", "hour", "minute", "second")
YEAR_MONTH = ("year", "month")
"""The units of Spark's two kinds of intervals, the largest first."""

_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "character": "char",
    "timestamp_ltz": "timestamp",
}
#: The names of the parts in angle brackets.
_NESTED = {"array": ("element",), "map": ("key", "value")}

_TOKEN = re.compile(
    r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<mark>[<>(),:]))"
)


class DdlError(Exception):
    """The reason why a text is not understood, worded so that "in `the text`" can follow."""


class UnknownTypeError(DdlError):
    """The text names a type that does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown type `{name}`")
        self.name = name


@dataclasses.dataclass(frozen=True)
class DdlType:
    """One type."""

    name: str
    """In lower case and without aliases: `bigint` for ``LONG``."""
    parameters: tuple[str, ...] = ()
    """In parentheses; the first and the last unit of an interval; the collation of a string."""
    parts: tuple[DdlField, ...] = ()
    """The element of an array, key and value of a map, the fields of a struct."""


@dataclasses.dataclass(frozen=True)
class DdlField:
    """A column, a field of a struct, or another part of a type."""

    name: str
    type: DdlType
    nullable: bool = True


def read_columns(text: str) -> DdlType:
    """The columns of a text, as a struct.

    >>> [(field.name, field.type.name, field.nullable) for field in read_columns("n long, `a b` date not null").parts]
    [('n', 'bigint', True), ('a b', 'date', False)]
    """
    return _Parser(text).columns()


def read_schema(text: str) -> DdlType:
    """The type of a text without names of columns; otherwise its columns, as a struct.

    >>> read_schema("decimal(12, 3)"), read_schema("n long").name
    (DdlType(name='decimal', parameters=('12', '3'), parts=()), 'struct')
    """
    return _Parser(text).schema()


def numbers(dtype: DdlType, least: int, most: int) -> list[int]:
    """The parameters of a type that takes `least` to `most` of them, all of them numbers."""
    count = len(dtype.parameters)
    if not least <= count <= most:
        takes = str(most) if least == most else f"{least} to {most}"
        raise DdlError(f"`{dtype.name}` takes {takes} parameter{'' if takes == '1' else 's'}, not {count},")
    for parameter in dtype.parameters:
        if not parameter.isdigit():
            raise DdlError(f"`{parameter}` is not a number")
    return [int(parameter) for parameter in dtype.parameters]


def decimal_parameters(dtype: DdlType) -> tuple[int, int]:
    """Precision and scale of a decimal."""
    precision, scale = [*numbers(dtype, 0, 2), *(10, 0)[len(dtype.parameters) :]]
    if not (1 <= precision <= 38 and scale <= precision):
        raise DdlError(f"decimal({precision},{scale}) has more than 38 digits, or a scale beyond its precision,")
    return precision, scale


class _Parser:
    """Reads one text, once."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def columns(self) -> DdlType:
        return self._whole(DdlType("struct", parts=self._fields()))

    def schema(self) -> DdlType:
        (kind, word), (_, after) = self._peek(), self._peek(1)
        # One word, a word with parameters or parts, or an interval, is a type; everything else is columns.
        is_type = len(self._tokens) == 1 or after in ("<", "(") or (word.lower() == "interval" and _is_unit(after))
        return self._whole(self._type()) if kind == "word" and is_type else self.columns()

    def _whole(self, found: DdlType) -> DdlType:
        kind, token = self._peek()
        if kind != "end":
            raise DdlError(f"unexpected `{token}`")
        return found

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ("end", "")

    def _take(self, kinds: tuple[str, ...], what: str) -> str:
        kind, token = self._peek()
        if kind not in kinds:
            raise DdlError(f"{what} is missing {'at the end' if kind == 'end' else f'before `{token}`'}")
        self._at += 1
        return token

    def _mark(self, mark: str) -> None:
        if not self._skip("mark", mark):
            raise DdlError(f"`{mark}` is missing")

    def _skip(self, kind: str, *words: str) -> bool:
        """Takes these tokens if they come next."""
        if all(self._peek(i)[0] == kind and self._peek(i)[1].lower() == word for i, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def _fields(self) -> tuple[DdlField, ...]:
        fields: list[DdlField] = []
        while True:
            name = self._take(("word", "quoted"), "a name")
            self._skip("mark", ":")
            dtype = self._type()
            nullable = not self._skip("word", "not", "null")
            if self._skip("word", "comment"):
                self._take(("text",), "the text of a comment")
            fields.append(DdlField(name, dtype, nullable))
            if not self._skip("mark", ","):
                return tuple(fields)

    def _type(self) -> DdlType:
        word = self._take(("word",), "a type").lower()
        name = _ALIASES.get(word, word)
        if name == "struct":
            self._mark("<")
            fields = () if self._peek() == ("mark", ">") else self._fields()
            self._mark(">")
            return DdlType(name, parts=fields)
        if name in _NESTED:
            return DdlType(name, parts=self._nested(_NESTED[name]))
        if name == "interval":
            return DdlType(name, self._units())
        if name == "string":
            collated = self._skip("word", "collate")
            return DdlType(name, (self._take(("word", "quoted"), "the name of a collation"),) if collated else ())
        return DdlType(name, self._parameters())

    def _nested(self, names: tuple[str, ...]) -> tuple[DdlField, ...]:
        parts: list[DdlField] = []
        for name in names:
            self._mark("," if parts else "<")
            parts.append(DdlField(name, self._type()))
        self._mark(">")
        return tuple(parts)

    def _units(self) -> tuple[str, ...]:
        if not _is_unit(self._peek()[1]):
            return ()
        start = self._take(("word",), "a unit of an interval").lower()
        return start, self._take(("word",), "a unit of an interval").lower() if self._skip("word", "to") else start

    def _parameters(self) -> tuple[str, ...]:
        if not self._skip("mark", "("):
            return ()
        parameters = [self._take(("word",), "a parameter")]
        while self._skip("mark", ","):
            parameters.append(self._take(("word",), "a parameter"))
        self._mark(")")
        return tuple(parameters)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Kinds and texts."""
    place, text = 0, text.rstrip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise DdlError(f"unexpected `{text[place:].strip()[:1]}`")
        kind = found.lastgroup
        assert kind is not None
        yield kind, found[kind].replace("``", "`") if kind == "quoted" else found[kind]
        place = found.end()


def _is_unit(word: str) -> bool:
    return word.lower() in (*DAY_TIME, *YEAR_MONTH)
