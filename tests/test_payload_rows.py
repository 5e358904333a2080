"""How large a payload row may be, by what bounds Arrow batches in the task.

Owns: tests of `settings.payload_row_bytes`. Does not own: payloads (the Rust splitter), batches inside Spark.
"""

from __future__ import annotations

import pytest

from fastchangelog.spark import settings

MIB = 1 << 20
OFF = str(2**31 - 1)
ROW_BYTES = {
    "Spark 4.1 and later end a batch by its bytes": ({}, "4.1.4", None),
    "by fewer bytes": ({settings.ARROW_BYTES: "1m"}, "4.3.0", None),
    "by many, but in time": ({settings.ARROW_BYTES: "128MB"}, "4.3.0", None),
    "Spark 4.0 does not": ({}, "4.0.5", 64 * MIB // 10_000),
    "whatever it is told": ({settings.ARROW_BYTES: "1m"}, "4.0.5", 64 * MIB // 10_000),
    "fewer rows may be larger": ({settings.ARROW_ROWS: "100"}, "4.0.5", 64 * MIB // 100),
    "a batch per row": ({settings.ARROW_ROWS: "0"}, "4.0.5", None),
    "switched off": ({settings.ARROW_BYTES: OFF}, "4.3.0", 64 * MIB // 10_000),
    "as good as switched off": ({settings.ARROW_BYTES: "1g"}, "4.2.1", 64 * MIB // 10_000),
    "no limit of rows either": ({settings.ARROW_BYTES: OFF, settings.ARROW_ROWS: "0"}, "4.3.0", None),
    "more rows than bytes": ({settings.ARROW_BYTES: OFF, settings.ARROW_ROWS: str(2**31 - 1)}, "4.3.0", 1),
}


@pytest.mark.parametrize("what", ROW_BYTES)
def test_payloads_are_small_where_spark_bounds_rows_alone(what: str) -> None:
    properties, version, expected = ROW_BYTES[what]
    assert settings.payload_row_bytes(properties.get, version) == expected
