"""What versions of Spark and PySpark can do.

Owns: every fact that depends on a version, under a name that says the fact.
Does not own: what follows from a fact, and the words for it (the callers); settings that must hold (`settings`).

A fact is either known of this process's PySpark, a constant, or asked of a Spark session's version, a `Since`: over
Spark Connect the two differ.
"""

from __future__ import annotations

import dataclasses

try:
    from pyspark import __version__ as PYSPARK
except ImportError:  # `requirements` says so
    PYSPARK = ""

__all__ = [
    "DECIMALS_OF_INTEGERS",
    "ENDS_BATCHES_BY_BYTES",
    "HAS_BYTES",
    "HAS_FRAMES_OF_TUPLES",
    "HAS_SPATIAL_TYPES",
    "HAS_TIME_TYPE",
    "INTEGERS_WITH_NA",
    "NULLS_IN_LISTS",
    "NULL_PERCENTILES",
    "PERCENTILES",
    "PERCENTILES_OF_TIMES",
    "PLAIN_KEYS",
    "PYSPARK",
    "READS_FORMAT_1_OVER_CONNECT",
    "READS_LOGS_OF_BOTH_FORMATS",
    "READS_OWN_CHECKPOINTS",
    "ROW_PROCESSORS",
    "SETS_OF_FLOATS",
    "SINGLE_STORES_IN_FORMAT_2",
    "STATISTICS_OF_EQUAL_VALUES",
    "STREAMS_OVER_CONNECT",
    "STRUCT_KEYS_OF_FRAMES",
    "SUPPORTED",
    "Since",
    "TESTER",
    "TIME_AND_SPATIAL_TYPES",
    "needs_older_pandas",
]


@dataclasses.dataclass(frozen=True)
class Since:
    """A fact that holds from one minor version on.

    >>> fact = Since(4, 1)
    >>> fact("4.0.5"), fact("4.1.0"), fact("4.10"), fact("5.0.0.dev1"), str(fact)
    (False, True, True, True, '4.1')
    """

    major: int
    minor: int

    def __call__(self, version: str) -> bool:
        major, minor = [*version.split("."), "0"][:2]
        return (_number(major), _number(minor)) >= (self.major, self.minor)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def _number(text: str) -> int:
    return int("".join(c for c in text if c.isdigit()) or 0)


#: `transformWithState` in Python.
SUPPORTED = Since(4, 0)
#: `transformWithState` with Rows; before there is the one with pandas frames only.
ROW_PROCESSORS = Since(4, 1)
#: `transformWithStateInPandas` over Spark Connect.
STREAMS_OVER_CONNECT = Since(4, 1)
#: Spark's own processors are given keys as Rows of Python's values, None for null.
PLAIN_KEYS = Since(4, 1)
#: Spark's own processors of frames are given numbers in a key that is a struct as they are.
STRUCT_KEYS_OF_FRAMES = Since(4, 2)
#: Spark's own stores of a single partition, and those of batch frames, work in format 2 of checkpoints.
SINGLE_STORES_IN_FORMAT_2 = Since(4, 1)
#: Spark reads logs that were written in another format of checkpoints than the session's.
READS_LOGS_OF_BOTH_FORMATS = Since(4, 2)
#: The list of percentiles of a stream is declared with elements that may be null.
NULL_PERCENTILES = Since(4, 3)
#: Spark's own list states hold a null among numbers.
NULLS_IN_LISTS = Since(4, 1)
#: PySpark's `TwsTester`.
TESTER = Since(4, 2)
#: The types TIME, GEOMETRY and GEOGRAPHY.
TIME_AND_SPATIAL_TYPES = Since(4, 1)
#: The `statestore` source reads format 2 of checkpoints, which queries with our state have. It reads none of the
#: `transformWithState` states that Spark 4.0 has written.
READS_OWN_CHECKPOINTS = Since(4, 1)
#: A frame of Spark Connect is analysed when it is used, under the format that `grouped` has set for the session.
READS_FORMAT_1_OVER_CONNECT = Since(4, 2)
#: Arrow batches for a stateful operator end at a number of bytes, and not of rows alone.
ENDS_BATCHES_BY_BYTES = Since(4, 1)
#: `spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled`.
DECIMALS_OF_INTEGERS = Since(4, 1)
#: `spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype`.
INTEGERS_WITH_NA = Since(4, 2)
#: `corr` of equal values is null under ANSI and divides by zero no more; variances of one value whose square overflows
#: are 0.0.
STATISTICS_OF_EQUAL_VALUES = Since(4, 3)
#: `dropDuplicates` takes 0.0 and -0.0 as equal, as `groupBy` does.
EQUAL_ZEROS = Since(4, 2)
#: `collect_set` takes zeros and NaNs of floating numbers for equal, and hashes their bits.
SETS_OF_FLOATS = Since(4, 2)
#: `percentile` interpolates with one product, which rounds once.
PERCENTILES = Since(4, 3)
#: `percentile_approx` and `histogram_numeric` take times of day.
PERCENTILES_OF_TIMES = Since(4, 3)
_PANDAS_3 = Since(4, 4)

#: This PySpark's binaries are `bytes`; before they are `bytearray`s.
HAS_BYTES = Since(4, 1)(PYSPARK)
#: This PySpark makes frames of named tuples: columns that are no Python names are renamed, numbers are 64 bits wide.
HAS_FRAMES_OF_TUPLES = Since(4, 1)(PYSPARK)
#: This PySpark has the type TIME.
HAS_TIME_TYPE = TIME_AND_SPATIAL_TYPES(PYSPARK)
#: This PySpark has the types GEOMETRY and GEOGRAPHY.
HAS_SPATIAL_TYPES = TIME_AND_SPATIAL_TYPES(PYSPARK)


def needs_older_pandas(pyspark: str, pandas: str) -> bool:
    """True if this pandas is too new for this PySpark.

    >>> needs_older_pandas("4.3.0", "3.0.0"), needs_older_pandas("4.3.0", "2.3.3"), needs_older_pandas("4.4.0", "3.0.0")
    (True, False, False)
    """
    return Since(3, 0)(pandas) and not _PANDAS_3(pyspark)
