"""Credentials that change under a state server: what is open continues with the newest ones.

Owns: sessions of a real server process at an S3 server that refuses what has been revoked.
Does not own: where credentials come from (`test_s3_credentials`), the worker's questions (tests/test_renewal).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fastchangelog import _internal, server
from fastchangelog.errors import PermissionDeniedError
from fastchangelog.server.paths import ServerPaths
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json
from support.stores.faults import PUT, Refuse, Request
from support.stores.places import SECRET, TOKEN, S3Place

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
SPEC = spec_json(1, INPUT, OUTPUT, [AggregateSpec("count", (), None, False, True, "count(1)")])
NEVER = 4_000_000_000_000


def key(number: int) -> str:
    return f"AKIAROTATING{number:08}"


class Job:
    """A query of one shard whose credentials are numbered; the store knows those that were not revoked."""

    def __init__(self, place: S3Place) -> None:
        self.place = place
        self.good = {0}
        self.handle: str | None = None
        self.batch = 0
        self.options = {"memory_budget": "64MiB", "retry_delay": "1ms", "hedge_percentile": "0"}
        place.proxy.always(Refuse(400, "ExpiredToken", "The provided token has expired."), where=self._revoked)

    def _revoked(self, request: Request) -> bool:
        return request.key_id not in {key(number) for number in self.good}

    def credentials(self, number: int, ends: int = NEVER) -> dict[str, Any]:
        keys = {"aws_access_key_id": key(number), "aws_secret_access_key": SECRET, "aws_session_token": TOKEN}
        return {"storage_options": {**self.place.credentials, **keys}, "credentials_expire_at": ends}

    def identity(self) -> dict[str, str]:
        return {"root": self.place.uri, "query_id": "query", "name": "default"}

    def open(self, number: int, ends: int = NEVER) -> _internal.SessionClient:
        request = {
            **self.identity(),
            "shard": 0,
            "shards": 1,
            "batch": self.batch,
            "handle": self.handle,
            "spec": SPEC,
            "options": self.options,
            **self.credentials(number, ends),
        }
        return server.open_session(json.dumps(request), self.options)

    def merge(self, session: _internal.SessionClient) -> None:
        splitter = _internal.Splitter(SPEC, 1, 128, 1 << 20)
        rows = pa.record_batch([["a", "b"], [1, 2]], schema=INPUT)
        for _, payload in splitter.push(rows) + splitter.finish():
            session.merge(payload)

    def end(self, session: _internal.SessionClient) -> None:
        """The rest of the batch: each key has been there once in every batch."""
        found = {row["n"] for batch in session.finish() for row in batch.to_pylist()}
        self.handle, _, _ = session.commit()
        self.batch += 1
        assert found == {self.batch}

    def run(self, number: int, ends: int = NEVER) -> None:
        with self.open(number, ends) as session:
            self.merge(session)
            self.end(session)

    def renew(self, number: int, ends: int = NEVER) -> None:
        client = _internal.ServerClient(str(ServerPaths.here().socket))
        client.renew(json.dumps({**self.identity(), **self.credentials(number, ends)}))

    def rotate(self, number: int) -> None:
        """From now on the store knows these credentials only."""
        self.good = {number}


@pytest.fixture
def job(bucket: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    (tmp_path / "run").mkdir()
    (tmp_path / "blockmgr-0").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "blockmgr-0"))
    yield Job(bucket)
    place = ServerPaths.here()
    if place.socket.exists():
        _internal.ServerClient(str(place.socket)).shutdown()
    log = place.log.read_text() if place.log.exists() else ""
    assert not [hidden for hidden in (SECRET, TOKEN, "AKIAROTATING") if hidden in log]


def test_an_open_shard_uses_the_newest_sessions_credentials(job: Job) -> None:
    for number in range(4):
        job.rotate(number)
        job.run(number)
    job.rotate(7)
    # As when the query is stopped and started again in the same application.
    job.run(7)
    assert {request.key_id for request in job.place.proxy.requests(PUT)} == {key(n) for n in (0, 1, 2, 3, 7)}


def test_a_session_uses_credentials_that_came_meanwhile(job: Job) -> None:
    job.run(0)
    with job.open(0) as session:
        job.merge(session)
        job.rotate(1)
        job.renew(1)
        job.end(session)
    assert job.place.proxy.requests(PUT)[-1].key_id == key(1)


def test_a_refused_request_is_sent_again_with_new_credentials(job: Job) -> None:
    job.run(0)
    with job.open(0) as session:
        job.merge(session)
        # The sets of two workers, of which the newer one ends first.
        job.renew(1, NEVER - 1)
        job.end(session)
    assert [request.key_id for request in job.place.proxy.requests(PUT)][-2:] == [key(1), key(0)]


def test_refused_credentials_end_the_batch_only(job: Job) -> None:
    job.run(0)
    with job.open(0) as session:
        job.merge(session)
        job.rotate(1)
        with pytest.raises(PermissionDeniedError, match="ExpiredToken"):
            job.end(session)
    job.run(1)


def test_a_snapshot_is_not_made_while_all_credentials_have_ended(job: Job) -> None:
    job.run(0)
    with job.open(0, ends=1) as session:
        client = _internal.ServerClient(str(ServerPaths.here().socket))
        (status,) = json.loads(client.shards())
        assert not status["at_rest"]
        job.renew(0)
        (status,) = json.loads(client.shards())
        assert status["at_rest"]
        job.merge(session)
        job.end(session)
