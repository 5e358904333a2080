"""Facts about the Spark task that runs this code.

Owns: reading task properties. Does not own: what they must be (`settings`).
"""

from __future__ import annotations

__all__ = ["BATCH_ID", "QUERY_ID", "local_property"]

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


def local_property(name: str) -> str | None:
    """A property that Spark gave to this task; None if unset, or outside a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
