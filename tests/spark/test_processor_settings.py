"""PySpark's settings that change what a processor sees or may yield: each as on Spark's operator.

Owns: one query for each setting. Does not own: types and values under the settings' defaults (`test_processor_types`),
time zones that Spark's workers do not know (`tests/test_processor_zones.py`).
"""

from __future__ import annotations

import datetime
import pathlib
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog.spark import versions
from support.spark.processor_harness import Job, by_value, compare

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
by_value(__name__)

ROWS = "k string, n bigint, t tinyint, y binary, at timestamp"
OUTPUT = "k string, d decimal(9,2), said string"
NOON = datetime.datetime(2024, 7, 1, 12)
BATCHES = [
    [("a", 1, 2, b"x", NOON), ("a", None, 3, b"y", NOON), ("b", 5, None, b"z", NOON)],
    [("a", 7, 8, b"x", NOON)],
]


class InFrames(StatefulProcessor):
    """Says what it sees of each frame, and yields what the settings allow."""

    def __init__(self, decimals: Any = None) -> None:
        self.decimals = decimals

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "n bigint, y binary, at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frames = list(rows)
        said = [f"{frame.dtypes.astype(str).tolist()} {frame.drop(columns='at').values.tolist()}" for frame in frames]
        before = self.kept.get()
        self.kept.update((len(frames), b"kept", frames[0]["at"].iloc[0].to_pydatetime()))
        text = f"{said} {None if before is None else (type(before[1]).__name__, before[2])}"
        yield pd.DataFrame({"k": [key[0]], "d": [self.decimals], "said": [text]})

    def close(self) -> None:
        pass


class InRows(StatefulProcessor):
    """Says what it sees of rows and of a state."""

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "y binary, at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        given = sorted(rows, key=lambda row: row.t or 0)
        before = self.kept.get()
        self.kept.update((b"kept", given[0].at.replace(tzinfo=None)))
        yield Row(k=key[0], d=None, said=f"{given} {before}")

    def close(self) -> None:
        pass


PREFIX = "spark.sql.execution."
SETTINGS = {
    "integers stay integers": {f"{PREFIX}pythonUDF.pandas.preferIntExtensionDtype": "true"},
    "integers for decimals": {f"{PREFIX}pythonUDF.pandas.intToDecimalCoercionEnabled": "true"},
    "columns by place": {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false"},
    "safe casts": {f"{PREFIX}pandas.convertToArrowArraySafely": "true"},
    "rows of a frame": {f"{PREFIX}arrow.maxRecordsPerBatch": "1"},
    "bytes of a frame": {f"{PREFIX}arrow.maxBytesPerBatch": "1"},
    "large types": {f"{PREFIX}arrow.useLargeVarTypes": "true"},
    "binaries": {f"{PREFIX}pyspark.binaryAsBytes": "false"},
    "session's zone": {"spark.sql.session.timeZone": "Asia/Kolkata"},
    "timestamps": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
}


@pytest.mark.parametrize("api", ["row", "pandas"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_read(feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path, api: str, name: str) -> None:
    for key, value in SETTINGS[name].items():
        conf(key, value)
    with_integers = name == "integers for decimals" and versions.DECIMALS_OF_INTEGERS(versions.PYSPARK)
    decimals = 3 if with_integers else None
    processor = InRows if api == "row" else lambda: InFrames(decimals)
    compare(feed, spark, tmp_path, Job(processor, OUTPUT, api=api), ROWS, BATCHES)
