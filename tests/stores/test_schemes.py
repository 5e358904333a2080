"""URI schemes: Spark's side accepts each scheme that the core connects to, and no other.

Owns: the agreement of both. Does not own: the table (`rust/store/src/scheme.rs`), connecting (the Rust tests).
"""

from __future__ import annotations

import pathlib

import pytest

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError

pytest.importorskip("pyspark")
from fastchangelog.spark import settings


@pytest.mark.parametrize("scheme", _internal.uri_schemes())
def test_spark_accepts_each_scheme_of_the_core(scheme: str, tmp_path: pathlib.Path) -> None:
    place = f"{tmp_path}/state" if scheme == "file" else "bucket/state"
    for given in (scheme, scheme.upper()):
        assert settings.check_root(f"{given}://{place}").endswith("/state")


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match=r"unknown scheme; known are file://, s3://.*memory:// and plain"):
        settings.check_root("hdfs://namenode/state")
