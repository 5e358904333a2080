"""Named types of arguments and results, for annotations in programs.

Owns: the names that stand in public signatures. Does not own: checks of values (each module checks its own arguments).
Imports nothing at run time, so that `import fastchangelog` stays cheap.

>>> from fastchangelog.types import KeyLike, Options
>>> def visit(user: KeyLike, options: Options) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from datetime import date
    from decimal import Decimal

    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column
    from typing_extensions import Buffer

__all__ = [
    "ArrowArrayLike",
    "BinaryArrayLike",
    "ColumnLike",
    "CredentialProvider",
    "DataTypeLike",
    "Duration",
    "JsonDict",
    "KeyLike",
    "OptionValue",
    "Options",
    "PathLike",
    "PythonValue",
    "RowsLike",
    "SavepointFormat",
    "Size",
    "StorageOption",
    "StorageOptions",
    "SupportsArrowArray",
    "SupportsArrowStream",
    "SupportsSimpleString",
    "ValueLike",
]


class SupportsArrowArray(Protocol):
    """An object with the Arrow PyCapsule interface of one array or record batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """The capsules of the schema and of the array."""
        ...


class SupportsArrowStream(Protocol):
    """An object with the Arrow PyCapsule interface of a stream of arrays, such as a table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The capsule of the stream."""
        ...


class SupportsSimpleString(Protocol):
    """A type of PySpark (`pyspark.sql.types.DataType`)."""

    def simpleString(self) -> str:
        """The type as a DDL text."""
        ...


PythonValue: TypeAlias = Any
"""A value read from a state. Its Python type depends on the declared schema."""

ValueLike: TypeAlias = (
    "str | bytes | bool | int | float | Decimal | date | timedelta | np.generic | Mapping[Any, Any] | Sequence[Any] | "
    "np.ndarray[Any, Any] | pa.Scalar | None"
)
"""One value of a declared type. A struct is a dict or a tuple, an array a list; None deletes, or is a null field."""

KeyLike: TypeAlias = (
    "str | bytes | bool | int | float | Decimal | date | timedelta | np.generic | Mapping[str, Any] | Sequence[Any] | "
    "np.ndarray[Any, Any] | pa.Scalar"
)
"""One key of a declared type. A key with field names is a dict or a tuple, a key of array type a list."""

ArrowArrayLike: TypeAlias = "SupportsArrowArray | SupportsArrowStream | Iterable[Any]"
"""Many values: any object with the Arrow PyCapsule interface, an Arrow array, one of numpy or pandas, a list."""

RowsLike: TypeAlias = "SupportsArrowArray | SupportsArrowStream | Iterable[Any]"
"""Many rows: a record batch, table or frame whose columns are found by name, or what `ArrowArrayLike` is."""

BinaryArrayLike: TypeAlias = "ArrowArrayLike | tuple[ArrowArrayLike, Buffer]"
"""Many byte strings: what `ArrowArrayLike` is, or a pair of ``n + 1`` offsets and the buffer that they point into."""

DataTypeLike: TypeAlias = "str | pa.DataType | pa.Schema | SupportsSimpleString"
"""A schema: a DDL text such as ``"long"`` or ``"n long, last timestamp"``, a PySpark type, an Arrow type or schema."""

ColumnLike: TypeAlias = "str | Column"
"""A column name, or a PySpark `Column`."""

Duration: TypeAlias = "str | timedelta"
"""A duration: a `timedelta`, ``"10s"``, ``"5m"`` (minutes), ``"1h"``, ``"2d"``, or Spark's ``"1 hour 30 minutes"``."""

Size: TypeAlias = "int | str"
"""A number of bytes, or a text such as ``"5MiB"``."""

PathLike: TypeAlias = "str | os.PathLike[str]"
"""A path or a URI."""

SavepointFormat: TypeAlias = Literal["canonical", "native"]
"""``"canonical"`` is sorted and readable by any later version, ``"native"`` is a copy of the files."""

OptionValue: TypeAlias = "str | int | float | bool | timedelta"
"""The value of an option; durations are never bare numbers."""

Options: TypeAlias = "Mapping[str, OptionValue]"
"""Options by name, see the reference of options."""

CredentialProvider: TypeAlias = "Callable[[], Mapping[str, str | datetime | None]]"
"""A function that returns credentials under their names as storage options, and ``expires_at`` if they expire."""

StorageOption: TypeAlias = "str | int | bool | CredentialProvider"
"""The value of a storage option; a function only as ``credential_provider``."""

StorageOptions: TypeAlias = "Mapping[str, StorageOption]"
"""Options of an object store by name, as `object_store` names them."""

JsonDict: TypeAlias = "dict[str, Any]"
"""A readable form of an object: texts, numbers, lists and dicts."""
