"""The failpoints at which tests hold or kill the processes of a Spark job, by the step of a batch's life.

Owns: the names, in their order. Does not own: which process is killed there (`test_kills`, the campaign); the points
themselves stand in the sources.
"""

from __future__ import annotations

#: Steps of a batch in their order; the comment is the chapter of its life that the step ends or begins.
WORKER_POINTS = [
    "split.finish",  # 1 → 2
    "operator.open",  # 3
    "operator.opened",  # 4
    "operator.merged",  # 5 → 6
    "operator.rows-yielded",  # 6 → 7
    "operator.committed",  # 9: durable, not yet in Spark's state
    "operator.stored",  # 9: in Spark's state, not yet committed
]
#: The same of a stateful processor; what user code hits stands in the processors of the tests (`ledger`,
#: `clock`).
INITIAL_POINT = "user.initial"  # 5, in a query's first batch
USER_POINTS = ["user.rows", "user.timer"]  # 5, 6
PROCESSOR_POINTS = [
    "split.finish",
    "operator.open",
    "operator.opened",
    *USER_POINTS,
    "operator.rows-yielded",
    "operator.committed",
    "operator.stored",
]
SERVER_POINTS = [
    "session.open",  # 3
    "promote.before",  # 4
    "promote.applied",
    "session.live",
    "session.merge",  # 5
    "session.finish",  # 6
    "session.before-persist",  # 7
    "write.before-upload",  # 8
    "store.before-put",
    "store.after-put",
    "write.after-upload",
    "session.durable",  # 9
    "session.committed",
]
BACKGROUND_POINTS = [  # 10
    "materialize.begin",
    "materialize.flush",
    "materialize.checkpoint",
    "materialize.push",
    "snapshot.before-sst",
    "snapshot.before-manifest",
    "snapshot.after-manifest",
]
SPILL_POINTS = ["session.spill", "session.spilled", "session.range"]  # 5 → 6, with a small `session_memory`
RESTORE_POINTS = ["restore.before", "store.before-get", "rebuild.taken-over"]  # 4, when nothing is live
SINK_POINTS = ["sink.before", "sink.after"]  # around the state's commit, before the batch's
