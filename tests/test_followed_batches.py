"""Queries that start and run, over objects that stand for Spark's: what tasks are told, and batches that are cut.

Owns: the settings of a query's session, the first batch of a run, the check of a batch, which queries are refused.
Does not own: the same with Spark (tests/spark/test_batch_functions, test_starts).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark import internals_queries, starts, task
from fastchangelog.spark.internals_queries import StartingQuery
from fastchangelog.spark.types.ddl import parse_ddl

OURS = frozenset({"handle"})


class Option:
    def __init__(self, value: int | None) -> None:
        self.get = lambda: value
        self.isEmpty = lambda: value is None


class Conf(dict[str, str]):
    """The settings of a session."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def unset(self, key: str) -> None:
        self.pop(key, None)


class JavaError(Exception):
    def __init__(self, kind: str) -> None:
        self.java_exception = SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: kind))


class Node:
    """A node of a plan."""

    def __init__(self, kind: str, *children: Node, error: str | None = None) -> None:
        self.kind, self.error = kind, error
        self.children = lambda: SimpleNamespace(size=lambda: len(children), apply=children.__getitem__)

    def getClass(self) -> Any:
        return SimpleNamespace(getSimpleName=lambda: self.kind)

    def getStateStoreCheckpointInfo(self) -> None:
        if self.error:
            raise JavaError(self.error)


class Execution:
    """A query of Spark's; its batches have the plan `plan`."""

    def __init__(self, planned: int | None = None, committed: int | None = None, run: str = "run") -> None:
        self.conf = Conf({task.BATCH: "of the query whose function starts this one"})
        self.sparkSessionForStream = lambda: SimpleNamespace(conf=lambda: self.conf)
        self.id = lambda: SimpleNamespace(toString=lambda: "query")
        self.runId = lambda: SimpleNamespace(toString=lambda: run)
        self.offsetLog = lambda: SimpleNamespace(getLatestBatchId=lambda: Option(planned))
        self.commitLog = lambda: SimpleNamespace(getLatestBatchId=lambda: Option(committed))
        self.resolvedCheckpointRoot = lambda: "file:/checkpoint"
        self.plan = Node("TransformWithStateInPySparkExec")
        self.lastExecution = lambda: SimpleNamespace(executedPlan=lambda: self.plan)


@pytest.mark.parametrize(
    ("planned", "committed", "first"), [(None, None, 0), (0, None, 0), (0, 0, 1), (7, 6, 7), (7, 7, 8), (7, 3, 7)]
)
def test_a_query_is_named_in_its_own_session(planned: int | None, committed: int | None, first: int) -> None:
    execution = Execution(planned, committed)
    internals_queries._name_query(execution, internals_queries._Logs(execution))
    told = {task.QUERY: "query", task.RUN: "run", task.CHECKPOINT: "file:/checkpoint"}
    assert execution.conf == {**told, task.FIRST_BATCH: str(first)}


class ForeachBatchFunction:
    """As PySpark's of that name."""

    def __init__(self, func: Callable[[Any, int], Any]) -> None:
        self.func = func


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    internals_queries._running.clear()


def follow(execution: Execution, *objects: object) -> None:
    pool = SimpleNamespace(lock=threading.Lock(), dict=dict(enumerate(objects)))
    gateway = SimpleNamespace(gateway_property=SimpleNamespace(pool=pool))
    internals_queries._follow_functions(SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway)), execution)


def batch_of(run: str | None) -> Any:
    conf = Conf({} if run is None else {task.RUN: run})
    return SimpleNamespace(sparkSession=SimpleNamespace(conf=conf))


def test_a_function_of_foreach_batch_finds_its_batch_named() -> None:
    seen: list[Any] = []
    given = ForeachBatchFunction(lambda batch, number: seen.append((number, batch.sparkSession.conf.get(task.BATCH))))
    follow(Execution(), object(), given)
    followed = given.func
    follow(Execution(run="next"), object(), given)
    assert given.func is followed, "once"
    for run, number, named in [("run", 3, "3"), ("next", 4, "4"), ("another", 5, None), (None, 6, None)]:
        batch = batch_of(run)
        given.func(batch, number)
        assert seen.pop() == (number, named)
        assert task.BATCH not in batch.sparkSession.conf, "the next batch does not begin with this one's name"


def test_a_batch_that_is_not_read_to_its_end_fails() -> None:
    execution, given = Execution(), ForeachBatchFunction(lambda batch, number: None)
    follow(execution, given)
    processor = "TransformWithStateInPySparkExec"
    for error, cut in [("java.lang.AssertionError", True), ("java.lang.IllegalStateException", False), (None, False)]:
        for plan in (
            Node(processor, error=error),
            Node("Project", Node(processor, error=error)),
            Node("Union", Node("Scan"), Node("Project", Node(processor), Node(processor, error=error))),
        ):
            execution.plan = plan
            if not cut:
                given.func(batch_of("run"), 5)
                continue
            with pytest.raises(InvalidArgumentError, match=r"not read to its end in batch 5: .*batch\.persist\(\)"):
                given.func(batch_of("run"), 5)


def test_an_error_of_the_function_is_its_own() -> None:
    def fails(batch: Any, number: int) -> None:
        raise LookupError("of the user")

    execution, given = Execution(), ForeachBatchFunction(fails)
    follow(execution, given)
    execution.plan = Node("TransformWithStateInPySparkExec", error="java.lang.AssertionError")
    with pytest.raises(LookupError, match="of the user"):
        given.func(batch_of("run"), 0)


@pytest.mark.parametrize(
    ("observed", "processors", "ours", "refused"),
    [
        ((), 1, 1, True),  # Spark's operator on our state
        ((), 1, 0, False),  # on its own
        ((), 0, 1, False),  # another operator: Spark refuses it itself
        (("fastchangelog.p",), 1, 1, False),
        (("fastchangelog.p",), 2, 2, True),  # of two operators one went back to Spark's
        (("fastchangelog.p",), 2, 1, False),
    ],
)
def test_sparks_operator_never_goes_on_from_our_state(
    observed: tuple[str, ...], processors: int, ours: int, refused: bool
) -> None:
    reads = {name: frozenset({"__m_processor"}) for name in observed}
    stored = (*[OURS] * ours, *[frozenset({"n"})] * (processors - ours))
    reason = starts.refusal_reason(StartingQuery("append", observed, reads, stored, ours, processors))
    assert (reason is not None and "would begin with empty states" in reason) is refused


def test_a_users_state_of_the_same_name_is_told_from_ours() -> None:
    def types(key: str, value: str) -> bool:
        return starts._is_ours(parse_ddl(key), parse_ddl(value))

    assert types("shard int", "handle string")
    assert types("shard int", "handle string, watermark bigint, timer bigint")
    assert not types("user string", "handle string")
    assert not types("shard bigint", "handle string")
    assert not types("shard int", "handle string, n bigint")
