"""`fastchangelog.metrics()`: one snapshot of the metrics of this process and of its state server.

Owns: the sum of the two. Does not own: the metrics (the core's table), the sum over this process's engines (the core).
They are for people: correctness never depends on them.

Not called `metrics`: an imported submodule of that name would replace the function `fastchangelog.metrics`.
"""

from __future__ import annotations

import json

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError
from fastchangelog.server.paths import ServerPaths

__all__ = ["metrics"]


def metrics() -> dict[str, int]:
    """All metrics by name, for all embedded states and changelog storages of this process and for the executor's state
    server, if one runs.

    Counters start with the process, or with the state server; what a closed state has counted stays counted. Of a
    histogram there are `<name>_count`, `_min`, `_p50`, `_p99` and `_max` of its newest values; where a process has
    engines of its own beside a state server, `_p50` and `_p99` are the greater of the two.

    In a job, a part of them is in `StreamingQueryProgress.observedMetrics`. `State.metrics` and
    `ChangelogStorage.metrics` give the part of one object.

    Returns:
        A new dict; the reference of metrics says what each of them means.

    Example:
        >>> import fastchangelog as fc
        >>> with fc.open_state("memory://docs/process") as st:
        ...     st.value_state("visits", key="string", value="long")["ann"] = 1
        ...     handle = st.checkpoint()
        ...     fc.metrics()["checkpoints"] >= 1
        True
    """
    engines, server = _internal.process_metrics(), _of_state_server()
    if server:
        histograms = {name for name, kind, _, _ in _internal.metrics_table() if kind == "histogram"}
        engines = {name: _combined(name, histograms, engines, server) for name in engines}
    return dict(sorted(engines.items()))


def _combined(name: str, histograms: set[str], *sources: dict[str, int]) -> int:
    """The sum of a metric over sources; for a part of a histogram, the least or the greatest."""
    histogram, _, part = name.rpartition("_")
    if histogram not in histograms or part == "count":
        return sum(source[name] for source in sources)
    seen = [source[name] for source in sources if source[f"{histogram}_count"]]
    return min(seen, default=0) if part == "min" else max(seen, default=0)


def _of_state_server() -> dict[str, int]:
    paths = ServerPaths.here()
    if not paths.has_socket():
        return {}
    try:
        found: dict[str, int] = json.loads(_internal.ServerClient(str(paths.socket), timeout_seconds=5.0).metrics())
    except FastChangelogError:
        return {}
    return found
