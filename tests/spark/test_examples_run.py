"""The how-tos in examples/ run, and their results are the right ones.

Owns: each example with the tests' session, beside Spark's own operator where it has one, and one as a user starts it.
Does not own: examples in docstrings (`test_examples`) and on pages (`test_documentation`).
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import itertools
import os
import pathlib
import random
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fastchangelog.spark.settings import REQUIRED
from support.spark.lacks import LACKS, needs
from support.spark.processor_harness import NO_DATA_BATCHES, by_value
from support.spark.stream_harness import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
#: PySpark 4.2 is the first with it.


def example(name: str) -> Any:
    """The module of an example, imported for this test alone."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    by_value(name)
    return module


@pytest.fixture
def both(
    spark: Any, tmp_path: pathlib.Path, conf: Callable[[str, str | None], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Any]]:
    """Runs an example on fastchangelog, then with `groupBy` in the place of `grouped`: equal rows, which it gives."""

    def run(module: Any, *arguments: Any) -> list[Any]:
        for key, value in REQUIRED.items():
            conf(key, value)
        found = []
        for side in ("ours", "sparks"):
            if side == "sparks":
                monkeypatch.setattr(module, "grouped", lambda df, *keys, state: df.groupBy(*keys))
            (tmp_path / side).mkdir()
            found.append(rows_of(module.run(spark, tmp_path / side, *arguments).collect()))
        assert found[0] == found[1]
        return found[0]

    return run


def test_every_example_is_listed_and_has_a_test() -> None:
    page = (EXAMPLES / "README.md").read_text()
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert set(re.findall(r"\]\((\w+)\.py\)", page)) == names
    assert names == {test.removeprefix("test_") for test in globals()} & names


@needs("rows")
def test_sessionization(both: Any, seed: int) -> None:
    """The example's clicks and random ones, in whole minutes: some are just 30 minutes apart. None is late."""
    module, rng = example("sessionization"), random.Random(seed)
    module.ARRIVALS = (
        module.ARRIVALS[0] + clicks_of(rng, 10 * 60, 10 * 60 + 45),
        module.ARRIVALS[1] + clicks_of(rng, 10 * 60 + 16, 12 * 60),
    )
    times: dict[str, list[int]] = {}
    for line in "".join(module.ARRIVALS).splitlines():
        user, at = line.split(",")
        times.setdefault(user, []).append(module.millis(dt.datetime.fromisoformat(at.replace("Z", "+00:00"))))
    watermark = max(itertools.chain(*times.values())) - 30 * 60_000
    expected = []
    for user, of_user in times.items():
        of_user.sort()
        ends = [i for i, at in enumerate(of_user) if i + 1 == len(of_user) or of_user[i + 1] - at >= 30 * 60_000]
        for first, last in zip([0, *(end + 1 for end in ends)], ends):
            if of_user[last] + 30 * 60_000 <= watermark:
                expected.append((user, of_user[first], of_user[last], last - first + 1))
    ten = 1772359200_000
    assert {("ann", ten, ten + 45 * 60_000, 3), ("bob", ten + 5 * 60_000, ten + 5 * 60_000, 1)} <= set(expected)
    found = [(user, module.millis(first), module.millis(last), n) for user, first, last, n in both(module)]
    assert sorted(found) == sorted(expected)


def clicks_of(rng: random.Random, first: int, last: int) -> str:
    """Lines of clicks of some users, between two minutes of the day."""
    minutes = [(rng.randrange(12), rng.randint(first, last)) for _ in range(40)]
    return "".join(f"user {user},2026-03-01T{at // 60:02}:{at % 60:02}:00Z\n" for user, at in minutes)


@needs("rows")
def test_fraud_rule(both: Any, spark: Any, tmp_path: pathlib.Path) -> None:
    """With cards beside the example's: payments just a minute apart (a), and a millisecond more (b); a second small
    payment (c), which is remembered longer than the first; a large payment that was made before the small one (d)."""
    module, ten = example("fraud_rule"), "2026-03-01T10"
    module.ARRIVALS = (
        module.ARRIVALS[0]
        + f"a,{ten}:00:00Z,0.5\nb,{ten}:00:00Z,0.5\nc,{ten}:00:00Z,0.5\nc,{ten}:00:30Z,0.75\nd,{ten}:00:30Z,0.5\n",
        module.ARRIVALS[1] + f"a,{ten}:01:00Z,500\nb,{ten}:01:00.001Z,500\nc,{ten}:01:29Z,500\nd,{ten}:00:25Z,500\n",
    )
    found = [(card, at.timestamp(), tried, amount) for card, at, tried, amount in both(module)]
    assert found == [
        ("a", 1772359260, 0.5, 500.0),
        ("c", 1772359289, 0.75, 500.0),
        ("card 1", 1772359245, 0.5, 700.0),
    ]
    # The watermark is 10:01:20: what was tried until 10:00:20 is forgotten.
    still = module.remembered(spark, tmp_path / "ours").collect()
    assert rows_of(still) == [("c", 0.75), ("card 4", 0.3), ("d", 0.5)]


@needs("rows")
def test_deduplication(both: Any, conf: Any) -> None:
    conf(NO_DATA_BATCHES, "false")
    module = example("deduplication")
    assert both(module) == [("e1", "ann", "login"), ("e2", "bob", "login"), ("e3", "ann", "logout")]


@needs("rows")
def test_an_id_is_forgotten_when_its_time_is_over(spark: Any, conf: Any, tmp_path: pathlib.Path) -> None:
    conf(NO_DATA_BATCHES, "false")
    # The second start of the query is more than a millisecond after the first.
    found = example("deduplication").run(spark, tmp_path, 1).collect()
    assert [row.id for row in found] == ["e1", "e2", "e2", "e3"]


@needs("rows")
def test_stream_join(both: Any) -> None:
    module = example("stream_join")
    lines = [[[line.split(",") for line in text.splitlines()] for text in arrival] for arrival in module.ARRIVALS]
    customers = dict(order for orders, _ in lines for order in orders)
    payments = [payment for _, payments in lines for payment in payments]
    expected = sorted((order, customers[order], float(amount)) for order, amount in payments if order in customers)
    assert len(expected) == 5
    assert both(module) == expected


def test_late_data(spark: Any, tmp_path: pathlib.Path) -> None:
    hours, late = example("late_data").run(spark, tmp_path)
    noon = 1772366400
    # 10:51 is before the watermark of the first arrival, 10:52; north's reading of 12:30 is in an hour that is open.
    assert [(row.end.timestamp(), row.meters, row.kwh) for row in hours.collect()] == [
        (noon - 3600, 2, 1.0 + 2.0 + 8.0),
        (noon, 1, 4.0),
    ]
    assert late == 1


@needs("rows")
def test_testing_a_processor(tmp_path: pathlib.Path) -> None:
    """Started as a user does, in a process with a session of its own."""
    env = {**os.environ, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    command = [sys.executable, str(EXAMPLES / "testing_a_processor.py")]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    count = 1 if LACKS["tester"].here else 4
    assert f"{count} passed" in done.stdout
