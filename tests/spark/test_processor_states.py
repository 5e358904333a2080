"""Every method of states and timers, called at random: Spark's operator and ours give the same answers, batch by batch.

Owns: the comparison of calls. Does not own: types of values (`test_processor_types`), what Spark gets wrong
(`test_processor_better`), timers in detail (`test_processor_time`).
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import pytest

from support.spark.processor_harness import NO_DATA_BATCHES, Job, by_value, compare
from support.spark.processors import (
    BASE,
    SCRIPT_OUTPUT,
    SCRIPT_SCHEMA,
    SEED,
    STATES,
    TIMERS,
    VALUE,
    Script,
    ScriptByClock,
    ScriptInPandas,
    script,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
by_value("support.spark.processors")

APIS = {"row": Script, "pandas": ScriptInPandas}


def job(api: str, **changes: Any) -> Job:
    return Job(**{"processor": APIS[api], "output": SCRIPT_OUTPUT, "api": api, **changes})


@pytest.mark.parametrize("api", APIS)
def test_states_without_time(feed: Any, spark: Any, tmp_path: pathlib.Path, api: str) -> None:
    batches = script(SEED, 4, 60, STATES, BASE)
    compare(feed, spark, tmp_path, job(api), SCRIPT_SCHEMA, batches, restart=True)


@pytest.mark.parametrize("api", APIS)
def test_states_and_timers_by_event_time(feed: Any, spark: Any, tmp_path: pathlib.Path, api: str) -> None:
    batches = script(SEED + 1, 5, 60, (*VALUE, "append", "read", "watermark", *TIMERS, "at", "at"), BASE)
    by_event_time = job(api, time_mode="EventTime", watermark=("ts", "10 seconds"))
    answered = compare(feed, spark, tmp_path, by_event_time, SCRIPT_SCHEMA, batches, restart=True)
    assert any("fired" in row.said for rows in answered.rows.values() for row in rows)
    assert sum(map(len, answered.rows.values())) < 5 * 60 + 200, "no row is late"


def test_states_and_timers_by_processing_time(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    conf(NO_DATA_BATCHES, "false")  # with them, Spark's operator makes batches for ever in this mode
    batches = script(SEED + 2, 4, 60, (*VALUE, "append", "read", "soon", "some day", "how many"), BASE)
    by_clock = job("row", processor=ScriptByClock, time_mode="ProcessingTime")
    answered = compare(feed, spark, tmp_path, by_clock, SCRIPT_SCHEMA, batches, restart=True)
    assert any("fired" in row.said for rows in answered.rows.values() for row in rows)


@pytest.mark.parametrize("api", APIS)
def test_states_that_end(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any, api: str) -> None:
    """One millisecond: what a batch wrote has ended in the next one. A day: it has not."""
    conf(NO_DATA_BATCHES, "false")
    batches = script(SEED + 3, 4, 60, STATES, BASE)
    for ttl, folder in ((1, "short"), (86_400_000, "long")):
        ends = job(api, processor=lambda ttl=ttl: APIS[api](ttl), time_mode="ProcessingTime")
        source = functools.partial(feed, name=f"in-{folder}")
        compare(source, spark, tmp_path / folder, ends, SCRIPT_SCHEMA, batches)


def test_several_grouping_columns_and_keys_of_other_names(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    batches = script(SEED + 4, 3, 60, STATES, BASE)
    two = job("row", keys=("x", "k"), output="k bigint, i bigint, said string")
    compare(feed, spark, tmp_path, two, SCRIPT_SCHEMA, batches)
