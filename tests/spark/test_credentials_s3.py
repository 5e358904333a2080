"""Streams and reads of state whose temporary credentials end meanwhile, and what Spark shows of credentials.

Owns: that a credential provider serves what outlives its answers, in one application.
Does not own: the server's side (tests/stores/test_server_credentials), the worker's questions (tests/test_renewal).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from fastchangelog.spark import grouped, read_state, redaction
from support.spark.frames_of_rows import with_state
from support.spark.processor_harness import by_value
from support.spark.stream_harness import end_state_server, rows_of, run
from support.stores.fault_proxy import FaultProxy
from support.stores.faults import PUT, Refuse, Request
from support.stores.places import SECRET, S3Place, s3_admin
from support.stores.servers import s3_server

by_value(__name__)
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "k string, v bigint"
KEYS = 20


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Place]:
    """An empty bucket, and an environment without credentials."""
    for name in tuple(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with s3_server() as server, FaultProxy(server) as proxy:
        yield S3Place(s3_admin(server), proxy)


def rotating(file: str, secret: str) -> Any:
    """A provider that gives the credentials whose number stands in `file`; pickled by value."""

    def provider() -> dict[str, Any]:
        with open(file) as current:
            number = int(current.read())
        end = datetime.now(timezone.utc) + timedelta(hours=1)
        return {"access_key_id": f"AKIAROTATING{number:08}", "secret_access_key": secret, "expires_at": end}

    return provider


def storage_of(bucket: S3Place, current: pathlib.Path) -> dict[str, Any]:
    """Storage options with a provider. The store refuses all credentials but those whose number stands in `current`."""

    def revoked(request: Request) -> bool:
        return request.key_id != f"AKIAROTATING{int(current.read_text()):08}"

    bucket.proxy.always(Refuse(400, "ExpiredToken", "The provided token has expired."), where=revoked)
    others = {k: v for k, v in bucket.credentials.items() if k not in ("aws_access_key_id", "aws_secret_access_key")}
    return {**others, "credential_provider": rotating(str(current), SECRET)}


def test_a_stream_outlives_its_credentials(spark: Any, feed: Any, bucket: S3Place, tmp_path: pathlib.Path) -> None:
    current = tmp_path / "current"
    storage = storage_of(bucket, current)
    source = feed(SCHEMA)
    root, checkpoint = f"s3://{bucket.bucket}/state", tmp_path / "checkpoint"
    for batch in range(3):
        current.write_text(str(batch))
        source.add([(f"k{i}", i) for i in range(KEYS)])
        frame = grouped(source.stream(), "k", state=root, storage_options=storage)
        counted = frame.agg(F.count("*").alias("n"))
        # As Spark shows a plan, and Python a frame.
        shown = f"{counted!r} {counted._jdf.queryExecution().toString()} {frame!r}"
        assert SECRET not in shown
        assert "AKIAROTATING" not in shown
        ran = run(counted, checkpoint)
        # The server, and what is live in it, is that of the batch before.
        assert rows_of(ran.batches[batch]) == rows_of([(f"k{i}", batch + 1) for i in range(KEYS)])
    used = [request.key_id for request in bucket.proxy.requests(PUT)]
    assert {f"AKIAROTATING{number:08}" for number in range(3)} == set(used)
    end_state_server(spark)


class Counts(StatefulProcessor):
    """Counts rows."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.n.update(((self.n.get() or (0,))[0] + sum(1 for _ in rows),))
        yield Row(k=key[0], n=self.n.get()[0])

    def close(self) -> None:
        pass


def test_states_are_read_with_the_credentials_of_the_moment(
    spark: Any, feed: Any, bucket: S3Place, tmp_path: pathlib.Path
) -> None:
    current, root = tmp_path / "current", f"s3://{bucket.bucket}/state"
    current.write_text("0")
    storage = storage_of(bucket, current)
    source = feed(SCHEMA, [(f"k{i}", i) for i in range(KEYS)])
    for name in ("aggregate", "processor"):
        frame = grouped(source.stream(), "k", state=root, name=name, storage_options=storage)
        result = (
            frame.agg(F.count("*").alias("n"))
            if name == "aggregate"
            else with_state(frame, Counts(), "k string, n long")
        )
        checkpoint = tmp_path / name
        assert rows_of(run(result, checkpoint).batches[0]) == rows_of([(f"k{i}", 1) for i in range(KEYS)])
        # Those with which a read was planned have ended when it is done.
        current.write_text(str(int(current.read_text()) + 1))
        read = read_state(spark, checkpoint, state=root, name=name, storage_options=storage)
        current.write_text(str(int(current.read_text()) + 1))
        keys = {row[0] if name == "aggregate" else row.key.k for row in read.collect()}
        assert keys == {f"k{i}" for i in range(KEYS)}
    end_state_server(spark)


def test_storage_options_among_settings_are_redacted(spark: Any, feed: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    conf(redaction.OF_SESSION, None)
    conf("spark.fastchangelog.storage.azure_storage_account_key", "b3Blbi1zZXNhbWU=")
    source = feed(SCHEMA, [("a", 1)])
    frame = grouped(source.stream(), "k", state=f"file://{tmp_path}/state").agg(F.count("*").alias("n"))
    # What events and pages of SQL executions show of the settings.
    state = spark._jsparkSession.sessionState()
    shown = state.conf().redactOptions(spark._jvm.PythonUtils.toScalaMap(dict(spark.conf.getAll))).toString()
    assert "azure_storage_account_key" in shown
    assert "b3Blbi1zZXNhbWU" not in shown
    assert "b3Blbi1zZXNhbWU" not in frame._jdf.queryExecution().toString()
