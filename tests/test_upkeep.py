"""The upkeep of shards against a server that is told what to say: which policy a shard follows, and since when."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastchangelog.upkeep import Materializers


class Server:
    """One shard whose log has grown."""

    def __init__(self, policy: dict[str, str] | None) -> None:
        self.policy = policy
        self.begun: list[str] = []

    def shards(self) -> str:
        status = {"id": "shard", "log_bytes_since_base": 5 << 20, "state_bytes": 100 << 20, "policy": self.policy}
        return json.dumps([status])

    def metrics(self) -> dict[str, int]:
        return {}

    def begin_materialize(self, shard_id: str) -> None:
        self.begun.append(shard_id)

    def set_shard_failure(self, shard_id: str, message: str | None) -> None:
        raise AssertionError(message)


def test_n08_a_shard_follows_the_newest_policy_of_its_query() -> None:
    server: Any = Server(None)
    now = 0.0
    with ThreadPoolExecutor(1) as pool:
        upkeep = Materializers(server, pool, clock=lambda: now)
        upkeep.poll()
        assert server.begun == [], "5 MiB of log is little to the default"
        server.policy = {"materialization_log_bytes": "1MiB", "materialization_log_ratio": "1000"}
        upkeep.poll()
        assert server.begun == ["shard"]
        server.policy = {"materialization_log_bytes": "1GiB"}
        now = 5.0
        upkeep.poll()
        assert server.begun == ["shard"]
        upkeep.close()
