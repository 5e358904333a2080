"""What a version of Spark cannot do: the table of the docs, and the only reasons for which a Spark test is skipped.

Owns: the rows of the table, the marks and skips that read it. Does not own: from which version on Spark can
(`fastchangelog.spark.versions`), the page (docs/deploying.md, which `tests/test_spark_lacks.py` compares with this).
"""

from __future__ import annotations

import dataclasses

import pytest

from fastchangelog.spark import versions
from fastchangelog.spark.versions import Since


@dataclasses.dataclass(frozen=True)
class Lack:
    """A row of the table."""

    what: str
    #: The first version that can; None for no version.
    first: Since | None
    #: The reason, which is in Spark.
    why: str
    #: What users do instead.
    instead: str

    @property
    def here(self) -> bool:
        """True if this PySpark cannot."""
        return self.first is None or not self.first(versions.PYSPARK)

    def row(self) -> str:
        """The line of the table."""
        return f"| {self.what} | {self.first or 'none'} | {self.why} | {self.instead} |"


LACKS = {
    "rows": Lack(
        "`transformWithState`, with Rows",
        versions.ROW_PROCESSORS,
        "PySpark 4.0 has only the method with pandas frames",
        "`transformWithStateInPandas`, `transformWithStateInArrow`",
    ),
    "connect": Lack(
        "aggregations and processors of a stream over Spark Connect",
        versions.STREAMS_OVER_CONNECT,
        "the Connect client of PySpark 4.0 has no `transformWithStateInPandas`, in which both run",
        "a classic session",
    ),
    "nulls in lists": Lack(
        "a null among the numbers of a list or map state, and numbers that are not NumPy's, on Spark's own operator",
        versions.NULLS_IN_LISTS,
        "PySpark 4.0 sends these states as pandas frames, which make the null a NaN and the numbers NumPy's",
        "`grouped` and `accelerate`, which keep both",
    ),
    "plain keys": Lack(
        "keys with names, with None for null, and with numbers that are not NumPy's, on Spark's own operator",
        versions.PLAIN_KEYS,
        "PySpark 4.0 takes keys out of pandas frames; it fails on a timestamp that is null",
        "`grouped` and `accelerate`, which give keys as Spark 4.1 does",
    ),
    "struct keys": Lack(
        "integers in a key that is a struct, with pandas frames, on Spark's own operator",
        versions.STRUCT_KEYS_OF_FRAMES,
        "PySpark 4.1 makes them floating numbers where another key has a null there",
        "`grouped` and `accelerate`, which keep them",
    ),
    "single stores": Lack(
        "Spark's own aggregations without a key, and its `transformWithState` of batch frames, in a session with "
        "format 2 of checkpoints",
        versions.SINGLE_STORES_IN_FORMAT_2,
        "Spark 4.0 expects more than one store, or a commit that a batch frame does not make",
        "a session of its own for such a query",
    ),
    "null percentiles": Lack(
        "the type of `percentile_approx` with several percentages as Spark declares it",
        versions.NULL_PERCENTILES,
        "older versions declare elements that are never null, and make null of a decimal with too many digits",
        "nothing: fastchangelog declares elements that may be null",
    ),
    "own checkpoints": Lack(
        "`import_state` from a checkpoint of format 2; `read_state` of one on `hdfs://`",
        versions.READS_OWN_CHECKPOINTS,
        "the source `statestore` of Spark 4.0 fails on format 2",
        "format 1, the default; a checkpoint in a folder or an object store, which the core reads",
    ),
    "format 1 over connect": Lack(
        "`import_state` from a checkpoint of format 1 over Spark Connect",
        versions.READS_FORMAT_1_OVER_CONNECT,
        "a frame of Connect is analysed again when it runs, by then under the settings of the new query",
        "a classic session for the first start",
    ),
    "checkpoints of 4.0": Lack(
        "going on from the checkpoint of a query that began on Spark 4.0, on a newer version",
        None,
        'Spark 4.0 writes "v2" into its snapshots, and newer versions expect "v1"',
        "[a savepoint](savepoints.md), taken of the stopped query on any version",
    ),
    "tester": Lack(
        "PySpark's `TwsTester`",
        versions.TESTER,
        "PySpark 4.2 is the first that has it",
        "`fastchangelog.testing.run_processor`",
    ),
    "types": Lack(
        "columns of the types TIME, GEOMETRY and GEOGRAPHY",
        versions.TIME_AND_SPATIAL_TYPES,
        "Spark 4.0 has no such types",
        "a number, a binary",
    ),
    "percentiles of times": Lack(
        "`percentile_approx` and `histogram_numeric` of TIME",
        versions.PERCENTILES_OF_TIMES,
        "Spark 4.2 takes only numbers, dates, timestamps and intervals there",
        "seconds of the day, as a number",
    ),
    "statistics": Lack(
        "Spark's answers as ours for `corr` of equal values, and variances of one value whose square overflows",
        versions.STATISTICS_OF_EQUAL_VALUES,
        "older versions raise `DIVIDE_BY_ZERO` in ANSI mode, and answer NaN",
        "nothing: fastchangelog answers null and 0.0 on every version, as Spark 4.3 does",
    ),
    "zeros": Lack(
        "Spark's `dropDuplicates` as ours for 0.0 and -0.0",
        versions.EQUAL_ZEROS,
        "Spark 4.0 and 4.1 compare the bytes of keys",
        "nothing: fastchangelog takes them as equal on every version, as `groupBy` does",
    ),
    "sets of floats": Lack(
        "Spark's answers as ours for `collect_set` of `float` and `double`",
        versions.SETS_OF_FLOATS,
        "older versions keep NaN several times, and have another order",
        "nothing: fastchangelog answers on every version as Spark 4.3 does",
    ),
    "percentiles": Lack(
        "Spark's answers as ours for `percentile` and `median` between two numbers, in the last bits",
        versions.PERCENTILES,
        "older versions interpolate with two products",
        "nothing: fastchangelog answers on every version as Spark 4.3 does",
    ),
}

HEADER = ("| What | From Spark | The reason in Spark | Instead |", "|---|---|---|---|")


def table() -> list[str]:
    """The lines of the table in the docs."""
    return [*HEADER, *(lack.row() for lack in LACKS.values())]


def needs(key: str) -> pytest.MarkDecorator:
    """Skips a test where this PySpark lacks what the key names."""
    return pytest.mark.skipif(LACKS[key].here, reason=_reason(key))


def skip_if_lacking(key: str) -> None:
    """Skips the test that calls it where this PySpark lacks what the key names."""
    if LACKS[key].here:
        pytest.skip(_reason(key))


def _reason(key: str) -> str:
    return f"{LACKS[key].what}: {LACKS[key].why}"
