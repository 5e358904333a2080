"""`fastchangelog.metrics()`: one snapshot of the counters of this process and of its state server.

Owns: the sum over sources. Does not own: the counters. They are for people: correctness never depends on them.

Not called `metrics`: an imported submodule of that name would replace the function `fastchangelog.metrics`.
"""

from __future__ import annotations

import json
from collections import Counter

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError
from fastchangelog.metric_sources import read_sources
from fastchangelog.server.paths import ServerPaths

__all__ = ["metrics"]


def metrics() -> dict[str, int]:
    """All counters by name: the sum over the open states and storages of this process, and its executor's state server.

    On a driver without any of them it is empty: in a job, the same numbers are in
    `StreamingQueryProgress.observedMetrics`. `State.metrics` and `ChangelogStorage.metrics` give the part of one
    object.

    Returns:
        A new dict; the reference of metrics says what each counter means.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/process") as st:
        ...     st.value_state("visits", key="string", value="long")["ann"] = 1
        ...     handle = st.checkpoint()
        ...     fc.metrics()["checkpoints"] >= 1
        True
    """
    total: Counter[str] = Counter()
    for counted in read_sources():
        total.update(counted)
    total.update(_of_state_server())
    return dict(sorted(total.items()))


def _of_state_server() -> dict[str, int]:
    paths = ServerPaths.here()
    if not paths.socket.exists():
        return {}
    try:
        found: dict[str, int] = json.loads(_internal.ServerClient(str(paths.socket), timeout_seconds=5.0).metrics())
    except FastChangelogError:
        return {}
    return found
