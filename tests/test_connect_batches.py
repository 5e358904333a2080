"""Functions of `foreachBatch` over Spark Connect, over objects that stand for Spark's: what their jobs are told.

Owns: the tag, where it comes from, the location of a checkpoint. Does not own: the same with a Connect server
(tests/spark/test_connect), how tasks read a tag (`test_task`).
"""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from fastchangelog.errors import StateNotFoundError, StoreError
from fastchangelog.spark import connect_batches, internals_connect, settings, task
from fastchangelog.spark.connect_batches import BatchFunction

OFFSETS = ["v1", json.dumps({"conf": {settings.SHUFFLE_PARTITIONS: "5"}}), "{}"]


class Client:
    def __init__(self) -> None:
        self.thread_tags = {"of the user"}

    def get_tags(self) -> set[str]:
        return self.thread_tags


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The files of the checkpoint /c."""
    found: dict[str, list[str]] = {"metadata": ['{"id":"q"}'], "offsets/4": OFFSETS}

    def opened(spark: Any, location: str) -> Any:
        assert location == "/c"
        return SimpleNamespace(lines=found.get)

    monkeypatch.setattr(connect_batches, "SparkFiles", opened)
    return found


def told(function: BatchFunction, seen: list[Any], number: int) -> dict[str, str]:
    """What the jobs of a batch are told."""
    client = Client()
    batch: Any = SimpleNamespace(sparkSession=SimpleNamespace(client=client))
    function(batch, number)
    assert seen.pop() == (batch, number)
    assert client.get_tags() == {"of the user"}, "after the function"
    user, ours = sorted(client.during, key=len)  # type: ignore[attr-defined]
    assert user == "of the user"
    return task._told(f"spark,{ours}")


def recording(seen: list[Any]) -> Any:
    def function(batch: Any, number: int) -> None:
        client = batch.sparkSession.client
        client.during = set(client.get_tags())
        seen.append((batch, number))

    return function


def test_jobs_are_told_what_the_checkpoint_says(files: dict[str, list[str]]) -> None:
    seen: list[Any] = []
    function = BatchFunction(recording(seen), "/c/")
    of_all = {task.QUERY: "q", task.FIRST_BATCH: "4", settings.PARTITIONS: "5"}
    assert told(function, seen, 4) == {**of_all, task.BATCH: "4"}
    files.clear()
    assert told(function, seen, 5) == {**of_all, task.BATCH: "5"}, "it is read once"


def test_tags_go_where_the_function_fails(files: dict[str, list[str]]) -> None:
    def failing(batch: Any, number: int) -> None:
        raise ZeroDivisionError

    client = Client()
    with pytest.raises(ZeroDivisionError):
        BatchFunction(failing, "/c")(SimpleNamespace(sparkSession=SimpleNamespace(client=client)), 4)  # type: ignore[arg-type]
    assert client.get_tags() == {"of the user"}


def test_a_temporary_checkpoint_has_an_id_of_its_own() -> None:
    seen: list[Any] = []
    function = BatchFunction(recording(seen), None)
    first, second = told(function, seen, 0), told(function, seen, 1)
    assert first[task.QUERY] == second[task.QUERY] == str(uuid.UUID(first[task.QUERY]))
    assert first[task.QUERY] != told(BatchFunction(recording(seen), None), seen, 0)[task.QUERY]


@pytest.mark.parametrize(
    ("name", "lines", "error"), [("metadata", None, StateNotFoundError), ("offsets/4", ["v1"], StoreError)]
)
def test_files_that_are_missing_or_cut(files: dict[str, list[str]], name: str, lines: Any, error: type) -> None:
    files.pop(name)
    if lines is not None:
        files[name] = lines
    with pytest.raises(error, match=name):
        told(BatchFunction(recording([]), "/c"), [], 4)


@pytest.mark.parametrize(
    ("options", "arguments", "conf", "expected"),
    [
        ({"checkpointLocation": "/a"}, {}, {}, "/a"),
        ({"CHECKPOINTLOCATION": "/a"}, {}, {}, "/a"),
        ({"checkpointLocation": "/a"}, {"options": {"checkpointLocation": "/b"}}, {}, "/b"),
        ({}, {"queryName": "n"}, {"spark.sql.streaming.checkpointLocation": "/all/"}, "/all/n"),
        ({}, {}, {"spark.sql.streaming.checkpointLocation": "/all"}, None),
        ({}, {"queryName": "n"}, {}, None),
    ],
)
def test_the_location_of_a_checkpoint(
    options: dict[str, str], arguments: dict[str, Any], conf: dict[str, str], expected: str | None
) -> None:
    writer = SimpleNamespace(
        _write_proto=SimpleNamespace(options=options, query_name=""),
        _session=SimpleNamespace(conf=SimpleNamespace(get=conf.get)),
    )
    assert internals_connect._location(writer, arguments) == expected
