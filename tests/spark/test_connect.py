"""Stateful processors over Spark Connect, with a real local server: the same answers as Spark's own gives there.

Owns: what must come out of `connect_job`. Does not own: the operators themselves, classic sessions.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from support.metrics_endpoint import free_port
from support.spark import quick_spark
from support.spark.lacks import LACKS, needs

pytest.importorskip("grpc", reason="Spark Connect needs grpcio, grpcio-status, googleapis-common-protos and zstandard")
pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status")
pytest.importorskip("zstandard", reason="Spark Connect needs zstandard")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), needs("connect")]

#: Hides the package from a worker that is started with this variable.
HIDING = """
import os, sys
from importlib.machinery import PathFinder

class WithoutPackage:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] == "fastchangelog" else PathFinder.find_spec(name, path, target)

if os.environ.get("WITHOUT_FASTCHANGELOG"):
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not PathFinder] + [WithoutPackage]
"""


def said(folder: pathlib.Path, *parts: str, **environ: str) -> dict[str, Any]:
    """What the job prints."""
    env = {k: v for k, v in os.environ.items() if k not in ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE")}
    folder.mkdir(exist_ok=True)
    # PySpark's warning about functions that users have not written.
    warned = "error:Cannot infer the eval type:UserWarning"
    env |= {"XDG_RUNTIME_DIR": str(folder), "PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": warned}
    env |= {"CONNECT_PORT": str(free_port()), **environ}
    line = [sys.executable, "-m", "support.spark.connect_job", str(folder), *parts]
    done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=880, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    parts = ("same", "timed", "calls", "accelerated", "aggregated", "accelerated_once", "imported")
    with quick_spark.python(tmp_path_factory) as python:
        return said(tmp_path_factory.mktemp("connect"), *parts, PYSPARK_PYTHON=python)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with quick_spark.python(tmp_path_factory) as python:
        found = said(tmp_path_factory.mktemp("functions"), "functions", PYSPARK_PYTHON=python)["functions"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("api", ["row", "pandas"])
def test_random_calls_answer_as_sparks(answers: dict[str, Any], api: str) -> None:
    found = answers["same"]
    assert len(found[f"{api} ours"]) == 75
    assert found[f"{api} ours"] == found[f"{api} sparks"]


@pytest.mark.parametrize("mode", ["EventTime", "ProcessingTime"])
def test_timers_watermarks_and_states_that_end(answers: dict[str, Any], mode: str) -> None:
    ours, sparks = (answers["timed"][f"{mode} {side}"] for side in ("ours", "sparks"))
    assert ours == sparks
    assert any("fired" in said for _, said in ours)
    assert "late" not in {key for key, _ in ours}


def test_initial_state(answers: dict[str, Any]) -> None:
    assert answers["calls"]["initial grouped"] == [["a", 101], ["a", 111], ["b", 2]]
    assert answers["calls"]["initial groupBy"] == [["a", 101], ["a", 111], ["b", 2]]


def test_batch_frames(answers: dict[str, Any]) -> None:
    assert answers["calls"]["batch"] == [["A", 11], ["B", 2]]
    assert answers["calls"]["agg"] == [["a", 11], ["b", 2]]
    assert answers["calls"]["expressions ours"] == answers["calls"]["expressions sparks"]
    assert [row[1] for row in answers["calls"]["expressions ours"]] == [20, 3]


def test_accelerate(answers: dict[str, Any]) -> None:
    found = answers["accelerated"]
    assert found["before"] == found["after"] == found["complete"] == []
    assert found["first"] == ["fastchangelog.default"]
    assert found["second"] == ["fastchangelog.default", "fastchangelog.default-2"]
    assert found["answers"] == [["a", 1], ["a", 12], ["b", 2]]
    assert found["beside"] == ["fastchangelog.default", "fastchangelog.default-2"]
    assert found["answers beside"] == [["a", 1], ["a", 10], ["a", 11], ["b", 2], ["b", 2]]
    assert found["answers after a restart"] == [["a", 1], ["a", 12], ["a", 123], ["b", 2]]
    assert found["rollup"] == ["k", "n"]
    complete, rollup = found["warned"]
    assert "is complete" in complete
    assert "a rollup" in rollup


def test_accelerate_aggregates(answers: dict[str, Any]) -> None:
    found = answers["aggregated"]
    for plan in ("windows", "chain"):
        assert found[f"{plan} ours"] == found[f"{plan} sparks"]
        assert found[f"{plan} ours"]
    assert found["counts"] == {"0": [["a", 1], ["b", 2]], "1": [["a", 11]], "2": [["a", 111], ["c", 5]]}
    assert found["states"] == 2
    window, chain, again, chained, first, second, plain = found["said"]
    assert window == again == first == second == "the aggregate runs on fastchangelog, under the name default"
    assert "the only one of its query" in chain == chained
    assert "leaves aggregates without windows to Spark" in plain


@pytest.mark.parametrize("plan", ["sessions", "distinct"])
def test_accelerate_session_windows_and_distinct_rows(answers: dict[str, Any], plan: str) -> None:
    found = answers["accelerated_once"]
    assert found[f"{plan} ours"] == found[f"{plan} sparks"]
    assert found[f"{plan} ours"]
    assert found["states"] == 2


@pytest.mark.parametrize("number", [1, 2])
def test_import_state(answers: dict[str, Any], number: int) -> None:
    found = answers["imported"][f"format {number}"]
    if isinstance(found, str):  # refused
        assert LACKS["format 1 over connect" if number == 1 else "own checkpoints"].here
        assert "cannot read the state of" in found
    else:
        assert found == [["a", 1011], ["c", 1]]


@pytest.mark.parametrize("query", ["sums", "processor"])
def test_functions_of_foreach_batch(functions: dict[str, Any], query: str) -> None:
    assert functions[query] == {"0": [["a", 1], ["b", 2]], "1": [["a", 11]], "2": [["a", 111], ["c", 5]]}


def test_state_of_functions_is_under_the_ids_of_their_queries(functions: dict[str, Any]) -> None:
    assert len(set(functions["ids"])) == 2
    assert functions["states"] == functions["ids"]


def test_a_function_that_reads_a_part_of_its_batch(functions: dict[str, Any]) -> None:
    """Spark keeps the state of a partition after its last row, and fails the batch where it has none."""
    assert "CheckpointInfo length" in functions["cut"]
    assert functions["after the cut"] == [[["a", 1], ["b", 2]], [["a", 11]], [["a", 111], ["c", 5]]]


def test_a_function_of_a_query_without_a_location(functions: dict[str, Any]) -> None:
    assert functions["temporary"] == [["a", 111], ["c", 5]]


def test_workers_without_the_package(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nWITHOUT_FASTCHANGELOG=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    error = said(tmp_path / "q", "without", PYSPARK_PYTHON=str(python), PYTHONPATH=path)["without"]["error"]
    assert "has no fastchangelog" in error
    assert "PYSPARK_PYTHON" in error
    assert sys.executable in error
