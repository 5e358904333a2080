"""Checkpoints of queries in a bucket: what the core reads of them, with which requests, and what faults make of it.

Owns: the difference to a checkpoint in a folder. Does not own: formats (`rust/spark/tests`), the sweep
(`test_gc_collector`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fastchangelog.checkpoints.files import CheckpointFiles
from fastchangelog.checkpoints.handles import QueryCheckpoints
from fastchangelog.errors import FastChangelogError, InvalidArgumentError, StateNotFoundError, StoreError
from fastchangelog.hidden import Hidden
from support.stores.faults import GET, LIST, PUT, Refuse
from support.stores.places import Place, S3Place

STORED = Path(__file__).parents[2] / "rust" / "spark" / "tests" / "checkpoints"
FOLDER = "queries/a b%20c"
BATCHES = (9, 10, 11)


def without_spark(location: str) -> CheckpointFiles:
    raise InvalidArgumentError(f"{location} is read by Spark only")


def checkpoints(credentials: Mapping[str, str], root: str) -> QueryCheckpoints:
    return QueryCheckpoints(without_spark, default_fs=None, root=root, storage_options=Hidden(dict(credentials)))


def upload(bucket: Place, version: str) -> None:
    folder = STORED / f"processor-{version}"
    for file in folder.rglob("*"):
        if file.is_file():
            bucket.write(f"{FOLDER}/{file.relative_to(folder)}", file.read_bytes())


@pytest.mark.parametrize("version", ["4.0", "4.3"])
def test_a_checkpoint_in_a_bucket_is_read_as_in_a_folder(bucket: S3Place, version: str) -> None:
    """Its location has characters that a URI escapes and that Spark takes as they are."""
    upload(bucket, version)
    location = f"s3a://{bucket.bucket}/{FOLDER}"
    inside = QueryCheckpoints(without_spark, default_fs="file:///")
    reader = checkpoints(bucket.credentials, bucket.uri)
    expected = inside.roots(str(STORED / f"processor-{version}"))
    bucket.proxy.forget()
    found = reader.roots(location)
    assert (found.query_id, found.batches, found.handles) == (expected.query_id, BATCHES, expected.handles)
    assert not bucket.proxy.requests(PUT), "nothing is written"
    counts = bucket.proxy.counts()
    # Each file of the state is read at most twice: the newest batch comes first.
    assert counts[GET] <= 2 * len(bucket.names()), counts
    assert counts[LIST] == 3, "commits, states and offsets, each once"
    assert reader.handles(location)[1] == BATCHES[-1]
    assert reader.time_of(location, BATCHES[-1]) > 0


def test_a_folder_without_a_checkpoint_is_not_one_that_is_gone(bucket: S3Place) -> None:
    reader = checkpoints(bucket.credentials, bucket.uri)
    location = f"s3a://{bucket.bucket}/{FOLDER}"
    with pytest.raises(StateNotFoundError, match="exists; check that this machine can see it"):
        reader.query_id(location)
    bucket.write("queries/.keep", b"")
    bucket.write("queries/_temporary/0", b"")
    with pytest.raises(StateNotFoundError, match="exists; check that this machine can see it"):
        reader.query_id(location)
    bucket.write("queries/other", b"")
    assert reader.query_id(location) is None, "other files are beside it, so it was removed"
    bucket.write(f"{FOLDER}/notes.txt", b"")
    with pytest.raises(StoreError, match="has no metadata of a query"):
        reader.query_id(location)


def test_refused_requests_never_mean_a_missing_checkpoint(bucket: S3Place) -> None:
    upload(bucket, "4.3")
    reader = checkpoints(bucket.credentials, bucket.uri)
    location = f"s3a://{bucket.bucket}/{FOLDER}"
    for kind in (GET, LIST):
        bucket.proxy.always(Refuse(403, "AccessDenied"), on=kind)
        with pytest.raises(FastChangelogError) as refused:
            reader.roots(location)
        assert not isinstance(refused.value, StateNotFoundError)
        bucket.proxy.heal()
    assert reader.roots(location).batches == BATCHES
