"""The materializers of shards against a fake server: which policy a shard follows, and since when."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fastchangelog.errors import RetryableError
from fastchangelog.materialization.server import ShardMaterializers


class Server:
    """One shard whose log has grown."""

    def __init__(self, policy: dict[str, str] | None) -> None:
        self.policy = policy
        self.begun: list[str] = []

    def shards(self) -> str:
        status = {"id": "shard", "policy": self.policy, "state_bytes": 100 << 20}
        return json.dumps([status | {"log_bytes_since_snapshot": 5 << 20, "segments_since_snapshot": 0}])

    def metrics(self) -> dict[str, int]:
        return {}

    def begin_materialize(self, shard_id: str) -> None:
        self.begun.append(shard_id)

    def set_shard_failure(self, shard_id: str, message: str | None) -> None:
        raise AssertionError(message)


@pytest.mark.case("N-08")
def test_a_shard_follows_the_newest_policy_of_its_query() -> None:
    server: Any = Server(None)
    now = 0.0
    with ThreadPoolExecutor(1) as pool:
        materializers = ShardMaterializers(server, pool, clock=lambda: now)
        materializers.poll()
        assert server.begun == [], "5 MiB of log is little to the default"
        server.policy = {"materialization_log_bytes": "1MiB", "materialization_log_ratio": "1000"}
        materializers.poll()
        assert server.begun == ["shard"]
        server.policy = {"materialization_log_bytes": "1GiB"}
        now = 5.0
        materializers.poll()
        assert server.begun == ["shard"]
        materializers.close()


class Pool:
    """Runs what it is given at once."""

    def submit(self, work: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        try:
            work()
            future.set_result(None)
        except Exception as error:
            future.set_exception(error)
        return future


class FullDisk(Server):
    """A server whose shard loses its local state with each run, until there is disk space; a session restores it."""

    def __init__(self) -> None:
        super().__init__({"materialization_interval": "1s", "materialization_max_failures": "3"})
        self.full, self.live = True, True
        self.refused: str | None = None
        self.refusals = 0

    def shards(self) -> str:
        (status,) = json.loads(super().shards())
        return json.dumps([{**status, "refused": self.refusals}])

    def begin_materialize(self, shard_id: str) -> Any:
        return self if self.live else None

    def run(self) -> None:
        if self.full:
            self.live = False
            raise RetryableError("no space left in /local; set `spark.local.dir`")

    def complete(self) -> None: ...

    def abort(self, message: str) -> None: ...

    def log(self, level: str, event: str, fields: dict[str, str]) -> None: ...

    def set_shard_failure(self, shard_id: str, message: str | None) -> None:
        self.refused = message
        self.refusals = self.refusals if message else 0

    def session(self) -> bool:
        """Opens a session, which restores."""
        if self.refused is not None:
            self.refusals += 1
            return False
        self.live = True
        return True


@pytest.mark.case("Y-02")
def test_a_dropped_shard_is_refused_for_a_while_only() -> None:
    server: Any = FullDisk()
    pool: Any = Pool()
    now = 0.0
    materializers = ShardMaterializers(server, pool, clock=lambda: now)

    def wait(seconds: float) -> None:
        nonlocal now
        for _ in range(int(seconds * 2)):
            now += 0.5
            materializers.poll()

    for _ in range(4):
        assert server.session(), "a failure that costs a restore is not counted twice"
        wait(4)
    assert "spark.local.dir" in server.refused
    assert "`max_failures` = 3" in server.refused
    wait(3600)
    for _ in range(4):
        assert not server.session(), "a disk that stays full fails the job, whenever its next batch comes"
        wait(1)
    wait(40)
    assert server.session(), "what is not live can be restored by a session only"
    wait(4)
    assert not server.session(), "one failure is enough now"
    wait(40)
    server.full = False
    for _ in range(10):
        assert server.session()
        wait(4)
    materializers.close()
