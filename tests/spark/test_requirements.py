"""Everything missing is named with its remedy at import."""

from __future__ import annotations

import pytest

from fastchangelog.spark.requirements import problems

HERE = {"pyspark": "4.3.0", "pandas": "2.3.3", "pyarrow": "26.0.0", "protobuf": "7.0"}


def _problems(**changes: str | None) -> list[str]:
    versions = {**HERE, **changes}
    return problems(versions.get, {}, lambda _: "/usr/bin/java")


def test_nothing_is_missing() -> None:
    assert _problems() == []


@pytest.mark.parametrize("package", ["pyspark", "pandas", "pyarrow", "protobuf"])
def test_a_missing_package_is_named_with_the_command(package: str) -> None:
    (problem,) = _problems(**{package: None})
    assert package in problem.lower()
    assert 'pip install "fastchangelog[spark]"' in problem


@pytest.mark.parametrize("version", ["3.5.1", "3.4.0.dev1"])
def test_an_old_pyspark_is_refused(version: str) -> None:
    assert version in _problems(pyspark=version)[0]


def test_pandas_3_is_refused() -> None:
    assert "pandas<3" in _problems(pandas="3.0.1")[0]


def test_a_missing_java_is_named() -> None:
    assert "Java is missing" in problems(HERE.get, {}, lambda _: None)[0]
    assert problems(HERE.get, {"PYTHON_WORKER_FACTORY_SECRET": "x"}, lambda _: None) == []
    assert problems({**HERE, "pyspark": None, "pyspark-client": "4.3.0"}.get, {}, lambda _: None) == []
