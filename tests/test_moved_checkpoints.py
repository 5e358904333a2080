"""Spark's metadata of a checkpoint that was moved names its files where they are now."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest

pytest.importorskip("pyspark")
from fastchangelog.spark.checkpoint.moved import repair
from fastchangelog.spark.failures import explain_error

SCHEMA = "state/0/_stateSchema/default/0_17"


def checkpoint(folder: pathlib.Path, *more: str) -> pathlib.Path:
    """A checkpoint as Spark leaves it."""
    (folder / SCHEMA).parent.mkdir(parents=True)
    (folder / SCHEMA).write_text("v3")
    metadata = folder / "state/0/_metadata/v2/0"
    metadata.parent.mkdir(parents=True)
    described = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPandasExec"},
        "stateStoreInfo": [{"storeName": "default", "stateSchemaFilePaths": [f"file:{folder}/{SCHEMA}", *more]}],
        "operatorPropertiesJson": '{"timeMode":"NoTime"}',
    }
    metadata.write_text(f"v2\n{json.dumps(described)}")
    metadata.with_name(".0.crc").write_bytes(b"crc")
    return metadata


def paths(metadata: pathlib.Path) -> list[str]:
    version, _, text = metadata.read_text().partition("\n")
    assert version == "v2"
    found: list[str] = json.loads(text)["stateStoreInfo"][0]["stateSchemaFilePaths"]
    return found


def test_a_moved_checkpoint_names_its_own_files(tmp_path: pathlib.Path) -> None:
    old, new = tmp_path / "an old one", tmp_path / "a new one"
    checkpoint(old)
    shutil.move(old, new)
    metadata = new / "state/0/_metadata/v2/0"
    assert repair(f"file:{new}") == [str(metadata)]
    assert paths(metadata) == [f"file:{new}/{SCHEMA}"]
    assert not metadata.with_name(".0.crc").exists(), "the checksum was of the old text"
    assert json.loads(metadata.read_text().partition("\n")[2])["operatorPropertiesJson"] == '{"timeMode":"NoTime"}'
    assert repair(f"file:{new}") == [], "once is enough"


def test_what_is_where_it_was_or_is_nowhere_stays_as_it_is(tmp_path: pathlib.Path) -> None:
    old, copy = tmp_path / "old", tmp_path / "copy"
    metadata = checkpoint(old, "file:/elsewhere/state/0/_stateSchema/default/1_99")
    before = metadata.read_bytes()
    shutil.copytree(old, copy)
    for root in (f"file:{old}", f"file:{copy}", "s3a://bucket/checkpoint", f"file:{tmp_path}/none"):
        assert repair(root) == []
    assert metadata.read_bytes() == (copy / metadata.relative_to(old)).read_bytes() == before


def test_in_a_bucket_sparks_error_is_explained() -> None:
    text = "File s3a://old/checkpoint/state/0/_stateSchema/default/0_17 does not exist"
    assert "the checkpoint was moved" in explain_error(text)
