"""PySpark's own `TwsTester` runs the same processors, and answers as our operator does over the same rows.

Owns: random rows through both, by time mode and api. Does not own: Spark's own operator (`test_processor_states`).

`TwsTester` is simpler than Spark's operator. What it answers otherwise is left out: TTL, which it ignores; `getValue`
of a map, a Row in Spark; whether a map exists whose last entry was removed; timers that are not after the watermark,
which it refuses; the watermark that rows see, which it does not know before the rows.
"""

from __future__ import annotations

import collections
import datetime as dt
import importlib
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row

from support.spark.lacks import LACKS, needs
from support.spark.processor_harness import NO_DATA_BATCHES, Job, by_value, sides
from support.spark.processors import (
    LIST,
    MAP,
    SCRIPT_OUTPUT,
    SCRIPT_SCHEMA,
    VALUE,
    Script,
    ScriptByClock,
    ScriptInPandas,
    script,
)
from support.spark.stream_harness import rows_of

tws_tester = None if LACKS["tester"].here else importlib.import_module("pyspark.sql.streaming.tws_tester")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), needs("tester")]
by_value("support.spark.processors")

BASE = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
COLUMNS = [column.split()[0] for column in SCRIPT_SCHEMA.split(", ")]
OPS = (*VALUE, *LIST, *(op for op in MAP if op not in ("look", "has map")))


class KeyByKey:
    """Batches through a `TwsTester`, key by key."""

    def __init__(self, processor: Any, api: str, mode: str) -> None:
        more = {"eventTimeExtractor": millis} if mode == "EventTime" else {}
        self.tester = tws_tester.TwsTester(processor, timeMode=mode, **more)
        self.api = api

    def batch(self, rows: Sequence[Any]) -> list[Any]:
        """The answers to a batch's rows."""
        by_key: dict[str, list[Row]] = collections.defaultdict(list)
        for row in rows:
            by_key[row[0]].append(Row(**dict(zip(COLUMNS, row))))
        out: list[Any] = []
        for key, group in by_key.items():
            if self.api == "row":
                out += self.tester.test(key, group)
            else:
                frame = pd.DataFrame([row.asDict() for row in group])
                out += self.tester.testInPandas(key, frame).itertuples(index=False, name=None)
        return out


def millis(row: Any) -> int:
    """The event time of a row, for `TwsTester`."""
    return int(row.ts.timestamp() * 1000)


@pytest.mark.parametrize("api", ["row", "pandas"])
@pytest.mark.parametrize("seed", [1, 2])
def test_states(feed: Any, spark: Any, tmp_path: pathlib.Path, api: str, seed: int) -> None:
    processor = Script if api == "row" else ScriptInPandas
    batches = script(seed, 3, 60, OPS, BASE)
    ours = sides(spark, tmp_path)[0].run(Job(processor, SCRIPT_OUTPUT, api=api), feed(SCRIPT_SCHEMA, *batches).stream())
    tester = KeyByKey(processor(), api, "None")
    for number, rows in enumerate(batches):
        assert rows_of(ours.rows[number]) == rows_of(tester.batch(rows)), (seed, number)


def test_event_time(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    """Late rows, and timers: those of a batch fire after its rows."""
    rng = random.Random(3)
    batches = script(3, 4, 40, (*OPS, "timers"), BASE)
    start = int(BASE.timestamp() * 1000)
    for number, rows in enumerate(batches):
        # Each row has a time. Timers are ahead of every watermark so far.
        rows[:] = [(*row[:5], row[5] or BASE) for row in rows]
        for place in rng.sample(range(len(rows)), 12):
            at = start + 10_000 * (number + 1) + rng.randrange(20_000)
            op = rng.choice(["at", "at", "not at"])
            rows[place] = (*rows[place][:2], op, at, *rows[place][4:])
    batches.append([("tick", 10**6, "get", 0, "", BASE + dt.timedelta(seconds=100))])
    job = Job(Script, SCRIPT_OUTPUT, time_mode="EventTime", watermark=("ts", "5 seconds"))
    ours = sides(spark, tmp_path)[0].run(job, feed(SCRIPT_SCHEMA, *batches).stream())
    tester, late = KeyByKey(Script(), "row", "EventTime"), 0
    for number in sorted(ours.rows):
        expected = tester.batch(batches[number]) if number < len(batches) else []
        late += len(batches[number]) - len(expected) if number < len(batches) else 0
        mark = dt.datetime.fromisoformat(str(ours.watermarks[number]).replace("Z", "+00:00"))
        now = int(mark.timestamp() * 1000)
        if now > tester.tester._currentWatermarkMs:
            expected += tester.tester.setWatermark(now)
        assert rows_of(ours.rows[number]) == rows_of(expected), number
    fired = [row for rows in ours.rows.values() for row in rows if row.said.startswith("fired")]
    assert late
    assert fired


def test_processing_time(feed: Any, spark: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    """Timers of the next millisecond fire with the batch after: one without other rows of their keys."""
    conf(NO_DATA_BATCHES, "false")
    batches = []
    for number, rows in enumerate(script(4, 3, 40, (*OPS, "soon", "some day", "how many"), BASE)):
        batches += [rows, [("tick", 10**6 + number, "get", 0, "", BASE)]]
    job = Job(ScriptByClock, SCRIPT_OUTPUT, time_mode="ProcessingTime")
    ours = sides(spark, tmp_path)[0].run(job, feed(SCRIPT_SCHEMA, *batches).stream())
    tester, clock = KeyByKey(ScriptByClock(), "row", "ProcessingTime"), 0
    for number, rows in enumerate(batches):
        expected = tester.batch(rows)
        if number % 2:
            clock += 1_000
            expected += tester.tester.setProcessingTime(clock)
        assert rows_of(ours.rows[number]) == rows_of(expected), number
    assert any(row.said.startswith("fired") for rows in ours.rows.values() for row in rows)
