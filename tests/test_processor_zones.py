"""The session's zones that Spark takes and Arrow does not know: times are converted, and all else needs no zone."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.split import payload_type
from fastchangelog.spark.types.zones import local_times, pandas_zone, zone_of
from support.processor_runs import Runner

NOON = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.timezone.utc)
#: A zone, and how far its clocks are from UTC in July.
OFFSETS = {
    "America/New_York": "-04:00", "+01:00": "+01:00", "UTC+01:00": "+01:00", "GMT+08:00": "+08:00", "GMT+8": "+08:00",
    "UTC+8": "+08:00", "UT-3": "-03:00", "-08": "-08:00", "+1:00": "+01:00", "+0530": "+05:30", "+05:30:00": "+05:30",
    "UTC+05:30:10": "+05:30:10", "-00:30": "-00:30", "Z": "+00:00", "UT": "+00:00", "Etc/GMT-3": "+03:00",
    "PST": "-07:00", "CTT": "+08:00", "EST": "-05:00", "HST": "-10:00", "GMT0": "+00:00",
}  # fmt: skip


def clock(zone: str) -> datetime.datetime:
    """Noon of UTC on the clocks of a zone."""
    return NOON.astimezone(datetime.datetime.fromisoformat(f"2024-07-01T00:00:00{OFFSETS[zone]}").tzinfo)


@pytest.mark.parametrize("zone", OFFSETS)
def test_each_zone_of_spark_has_its_clocks(zone: str) -> None:
    expected = clock(zone).replace(tzinfo=None)
    assert NOON.astimezone(zone_of(zone)).replace(tzinfo=None) == expected
    assert local_times(pa.array([NOON, None], pa.timestamp("us", "UTC")), zone).to_pylist() == [expected, None]
    assert pd.Timestamp(expected).tz_localize(pandas_zone(zone)) == NOON


class Shown(StatefulProcessor):
    """Answers with what it sees of a row, by way of a state."""

    def __init__(self, api: str) -> None:
        self.api = api

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (given,) = rows
        self.n.update((1,))
        shown = str(key[0])
        if "ts" in (given.__fields__ if self.api == "row" else given.columns):
            shown = str((given.ts if self.api == "row" else given["ts"][0]).replace(tzinfo=None))
        answer = {"k": "a", "shown": shown, "at": None}
        if self.api == "row":
            yield Row(**answer)
        else:
            yield pd.DataFrame({**answer, "at": [pd.Timestamp("2024-07-01 12:00")]})

    def close(self) -> None:
        pass


@pytest.mark.parametrize("api", ["row", "pandas"])
@pytest.mark.parametrize("zone", ["UTC+8", "PST", "Z", "UTC+05:30:10"])
def test_user_code_sees_the_times_of_the_zone(api: str, zone: str) -> None:
    runner = Runner(
        Shown(api), api=api, rows="ts timestamp", output="k string, shown string, at timestamp", timezone=zone
    )
    ((_, shown, at),) = runner.batch([("a", NOON)])
    local = clock(zone)
    assert shown == str(local.replace(tzinfo=None))
    if api == "pandas":  # naive times are of the zone
        assert at == datetime.datetime(2024, 7, 1, 12, tzinfo=local.tzinfo)
    keyed = Runner(Shown(api), api=api, key="k timestamp", output="k string, shown string, at timestamp", timezone=zone)
    ((_, shown, _),) = keyed.batch([(NOON, 1)])
    assert shown.startswith(str(local.replace(tzinfo=None)))


@pytest.mark.parametrize("api", ["row", "pandas"])
def test_without_times_no_zone_is_looked_up(api: str) -> None:
    runner = Runner(Shown(api), api=api, output="k string, shown string", timezone="Nowhere/Land")
    assert runner.batch([("a", 1)]) == [("a", "a")]


@pytest.mark.parametrize("api", ["row", "pandas"])
def test_a_zone_that_is_unknown_is_named_with_its_setting(api: str) -> None:
    runner = Runner(Shown(api), api=api, rows="ts timestamp", output="k string, shown string", timezone="Nowhere/Land")
    with pytest.raises(InvalidArgumentError, match=r"column `ts`: spark\.sql\.session\.timeZone is 'Nowhere"):
        runner.batch([("a", NOON)])


def test_payload_rows_have_no_column_with_a_zone() -> None:
    assert [field.dataType.typeName() for field in payload_type(0).fields] == ["integer", "binary", "timestamp_ntz"]
