"""A checkpoint of Spark and a state folder that do not belong together: each case is named, and nothing is lost.

Owns: changed aggregates, a lost checkpoint, a lost state, damaged objects, an unwritable folder, as a user's query
meets them. Does not own: the same cases at the core's own face (Rust), credentials and settings (test_life).
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import uuid
from typing import Any

import pytest
from pyspark.sql import functions as F

from fastchangelog.spark import grouped
from fastchangelog.spark.failures import explain_error
from support.spark.stream_harness import end_state_server, rows_of, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, v bigint"
FIRST, SECOND = [("a", 1), ("b", 2), (None, 3)], [("a", 10), ("b", 20), (None, 30)]


def build(feed: Any, tmp_path: pathlib.Path, *more: Any) -> Any:
    return grouped(feed.stream(), "k", state=str(tmp_path / "state")).agg(F.sum("v").alias("s"), *more)


def fails(feed: Any, tmp_path: pathlib.Path, *more: Any) -> tuple[str, str]:
    """What a user reads when the query fails: the message, and what `explain_error` makes of it."""
    with pytest.raises(Exception) as error:
        run(build(feed, tmp_path, *more), tmp_path / "ckpt")
    return str(error.value), explain_error(error.value)


def objects(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(p for p in (tmp_path / "state").rglob("*") if p.is_file())


def test_changed_aggregates_are_named_and_the_old_query_goes_on(feed: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, FIRST)
    run(build(source, tmp_path), tmp_path / "ckpt")
    source.add(SECOND)
    message, advice = fails(source, tmp_path, F.max("v").alias("m"))
    assert "max" in message, message
    assert "SchemaMismatchError" in message
    assert "checkpoint" in advice, advice
    ran = run(build(source, tmp_path), tmp_path / "ckpt")
    assert rows_of(ran.batches[1]) == rows_of([("a", 11), ("b", 22), (None, 33)]), "nothing was lost"


def test_a_new_checkpoint_starts_empty_in_a_folder_of_its_own(feed: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, FIRST)
    run(build(source, tmp_path), tmp_path / "ckpt")
    before = {p: p.read_bytes() for p in objects(tmp_path)}
    shutil.rmtree(tmp_path / "ckpt")
    source.add(SECOND)
    ran = run(build(source, tmp_path), tmp_path / "ckpt")
    assert rows_of(ran.batches[1]) == rows_of([("a", 11), ("b", 22), (None, 33)]), "both batches, read anew, once each"
    assert {p: p.read_bytes() for p in before} == before, "the old query's state is as it was"
    queries = {p.relative_to(tmp_path / "state").parts[0] for p in objects(tmp_path)}
    assert len(queries) == 2, queries


def test_a_lost_state_names_the_missing_object(feed: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, FIRST)
    run(build(source, tmp_path), tmp_path / "ckpt")
    names = {p.name for p in objects(tmp_path)}
    end_state_server(spark)
    kept = tmp_path / "kept"
    (tmp_path / "state").rename(kept)
    source.add(SECOND)
    message, advice = fails(source, tmp_path)
    assert "StateNotFoundError" in message
    assert any(name in message for name in names), message
    assert "it was deleted, or the URI points to another folder" in advice, advice
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    kept.rename(tmp_path / "state")
    ran = run(build(source, tmp_path), tmp_path / "ckpt")
    assert rows_of(ran.batches[1]) == rows_of([("a", 11), ("b", 22), (None, 33)]), "put back, it goes on"


def test_a_copied_checkpoint_is_told_that_query_ids_differ(feed: Any, tmp_path: pathlib.Path) -> None:
    source = feed(SCHEMA, FIRST)
    run(build(source, tmp_path), tmp_path / "ckpt")
    old = json.loads((tmp_path / "ckpt" / "metadata").read_text())["id"]
    (tmp_path / "ckpt" / "metadata").write_text(json.dumps({"id": (new := str(uuid.uuid4()))}))
    (tmp_path / "ckpt" / ".metadata.crc").unlink(missing_ok=True)
    source.add(SECOND)
    message, advice = fails(source, tmp_path)
    assert "StateNotFoundError" in message
    for said in (message, advice):
        assert "The ids differ" in said
        assert {old, new} <= set(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", said))


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_object_is_named_with_the_offset(feed: Any, spark: Any, tmp_path: pathlib.Path, damage: str) -> None:
    source = feed(SCHEMA, FIRST)
    run(build(source, tmp_path), tmp_path / "ckpt")
    end_state_server(spark)
    log = [p for p in objects(tmp_path) if p.parent.name == "log"]
    assert log, [str(p) for p in objects(tmp_path)]
    for path in log:
        data = bytearray(path.read_bytes())
        if damage == "cut":
            del data[len(data) // 2 :]
        else:
            data[len(data) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
    source.add(SECOND)
    message, _ = fails(source, tmp_path)
    assert "CorruptDataError" in message
    assert any(path.name in message for path in log), message
    assert re.search(r"at byte \d+", message), message


def test_an_unwritable_folder_is_found_before_the_query(feed: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(Exception, match="state") as error:
        build(feed(SCHEMA, FIRST), tmp_path)
    assert type(error.value).__name__ in ("InvalidArgumentError", "PermissionDeniedError")
