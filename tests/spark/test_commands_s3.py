"""The commands on a state in a bucket: all of them after a real query, and a query that begins with what they made.

Owns: that a state on S3 is served as one in a folder is. Does not own: what each command does and refuses
(`test_savepoint_spark`, `test_sweep_spark`), the store under faults (tests/stores).
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import functions as F

from fastchangelog import cli
from fastchangelog.spark import grouped
from support.notes import changed
from support.spark.stream_harness import end_state_server, rows_of, run
from support.stores.fault_proxy import FaultProxy
from support.stores.faults import PUT
from support.stores.places import S3Place, s3_admin
from support.stores.servers import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, v bigint"
PARTITIONS = "spark.sql.shuffle.partitions"
KEYS = 40


def rows(batch: int) -> list[tuple[str, int]]:
    return [(f"k{i}", batch * 100 + i) for i in range(KEYS)]


def expected(batches: int) -> list[Any]:
    return rows_of([(f"k{i}", batches, sum(batch * 100 + i for batch in range(batches))) for i in range(KEYS)])


def last(ran: Any) -> list[Any]:
    return rows_of(ran.batches[max(ran.batches)])


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Place]:
    """An empty bucket, and an environment without credentials."""
    for name in tuple(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with s3_server() as server, FaultProxy(server) as proxy:
        yield S3Place(s3_admin(server), proxy)


class Commands:
    """Runs commands with the credentials of a bucket."""

    def __init__(self, bucket: S3Place, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.storage = [text for pair in bucket.credentials.items() for text in ("--storage-option", "=".join(pair))]

    def __call__(self, *arguments: object, code: int = cli.OK) -> Any:
        found = cli.main([*map(str, arguments), *self.storage, "--json"])
        said = self.capsys.readouterr()
        assert found == code, said
        return json.loads(said.out)


def build(source: Any, bucket: S3Place, state: str, **options: str) -> Any:
    # A snapshot that is being made when its server ends leaves objects that a sweep would find, too.
    options = {"materialization_log_ratio": "1000000", **options}
    frame = grouped(source.stream(), "k", state=state, options=options, storage_options=bucket.credentials)
    return frame.agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def test_every_command_serves_a_state_in_a_bucket(
    spark: Any, feed: Any, conf: Any, bucket: S3Place, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command = Commands(bucket, capsys)
    root, checkpoint = f"s3://{bucket.bucket}/states/of one", tmp_path / "checkpoint"
    conf(PARTITIONS, "2")
    source = feed(SCHEMA, rows(0), rows(1))
    assert last(run(build(source, bucket, root), checkpoint)) == expected(2)
    folder = next(name for name in bucket.names() if "/log/" in name).rpartition("/log/")[0]
    lost = f"{folder}/log/{7:032x}"
    bucket.write(lost, b"unreferenced")
    source.add(rows(2))
    assert last(run(build(source, bucket, root), checkpoint)) == expected(3)
    end_state_server(spark)

    # What is there.
    own = [name for name in bucket.names() if name.startswith(folder)]
    own = [name for name in own if "/_fastchangelog-starts/" not in name]
    assert len(bucket.names()) == len(own) + 2, "the notes of the root and of the start are no objects of a state"
    (item,) = run_command("inspect", root)
    assert (item["kind"], item["objects"]) == ("query", len(own))
    for address, name in ((item["uri"], ""), (item["uri"].rpartition("/")[0], "default")):
        (row,) = run_command("inspect", address)
        assert (row["folder"], row["log_objects"]) == (name, sum("/log/" in name for name in bucket.names()))
    assert run_command("verify", root, "--checkpoint", checkpoint)["damaged"] == []

    # Savepoints in the bucket, in both forms, and on the local disk.
    places = {"canonical": f"s3://{bucket.bucket}/put aside", "native": f"s3://{bucket.bucket}/native"}
    base = ["savepoint", checkpoint, "--state", root]
    for form, place in places.items():
        taken = run_command(*base, "--to", place, "--format", form)
        copies = [request for request in bucket.proxy.requests(PUT) if "x-amz-copy-source" in request.headers]
        assert len(copies) == (len(taken["files"]) if form == "native" else 0), "the store copies by itself"
        assert (taken["uri"], taken["keys"], taken["batch"]) == (place, KEYS, 2)
        assert run_command("inspect", place)["format"] == form
        assert run_command("verify", place)["damaged"] == []
        out = tmp_path / f"{form}.parquet"
        run_command("export", place, "--to", out)
        assert rows_of(map(tuple, parquet.read_table(out).to_pandas().values.tolist())) == expected(3)
    run_command(*base, "--to", tmp_path / "local")
    assert run_command("verify", tmp_path / "local")["keys"] == KEYS
    kinds = {item["folder"]: item["kind"] for item in run_command("inspect", f"s3://{bucket.bucket}")}
    assert sorted(kinds.values()) == ["query", "savepoint", "savepoint"]
    taken = run_command(*base, "--to", f"{root}-3", "--partitions", 3)
    assert (taken["keys"], taken["format"]) == (KEYS, "native")
    assert f"start_from='{root}-3'" in "".join(taken["start_with"])

    # A sweep finds what no batch needs, and takes it away the second time: its servers count on nothing any more.
    note = f"{folder}/_fastchangelog.json"
    bucket.write(note, changed(bucket.read(note), sweep_grace_seconds=0))
    before = set(bucket.names())
    sweep = ["sweep", root, "--checkpoint", checkpoint, "--grace", "0s"]
    (dry,) = run_command(*sweep, code=cli.FOUND)["folders"]
    assert (dry["kept_because"], dry["waiting"]) == (None, [f"log/{7:032x}"])
    assert set(bucket.names()) == before, "a dry run writes nothing"
    run_command(*sweep, "--delete")
    (swept,) = run_command(*sweep, "--delete")["folders"]
    assert swept["deleted"] == [f"log/{7:032x}"]
    assert {*before} - {*bucket.names()} == {lost}

    # The old query continues, and new ones begin with savepoints; the old state is not needed for that.
    source.add(rows(3))
    assert last(run(build(source, bucket, root), checkpoint)) == expected(4)
    end_state_server(spark)
    for name in bucket.names():
        if name.startswith("states/of one/"):
            bucket.admin.delete_object(Bucket=bucket.bucket, Key=name)
    for place, partitions in [(places["canonical"], 3), (places["native"], 1), (f"{root}-3", 3)]:
        conf(PARTITIONS, str(partitions))
        number = partitions + len(place)
        source = feed(SCHEMA, rows(3), name=f"in-{number}")
        next_root, next_checkpoint = f"s3://{bucket.bucket}/next-{number}", tmp_path / f"checkpoint-{number}"
        began = run(build(source, bucket, next_root, start_from=place), next_checkpoint)
        assert last(began) == expected(4)
        end_state_server(spark)
