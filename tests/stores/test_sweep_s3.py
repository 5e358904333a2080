"""A sweep of a state root on S3: names, times and deletions as the store gives them.

Owns: what differs from a folder. Does not own: the sweep (`test_gc_collector`).
"""

from __future__ import annotations

import pytest

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError
from fastchangelog.gc.collector import Collector
from fastchangelog.gc.plan import GcState
from fastchangelog.gc.report import FolderReport
from fastchangelog.layout import FOLDER_META, GC_CHECKPOINTS, GC_STATE
from support.notes import folder_note
from support.stores.faults import DELETE, GET, LIST, PUT, Refuse
from support.stores.places import S3Place
from support.swept import Told, roots

FOLDER = "log/query/default"
META = folder_note(sweep_grace_seconds=0)
OBJECTS = [f"{FOLDER}/log/{i:032x}" for i in range(40)] + [f"{FOLDER}/sst/{1:032x}.sst", f"{FOLDER}/base/{2:032x}"]


def write_notes(bucket: S3Place) -> None:
    """The note of the folder, and that of an earlier sweep that was told where the checkpoint is."""
    bucket.write(f"{FOLDER}/{FOLDER_META}", META)
    bucket.write(f"{FOLDER}/{GC_STATE}", GcState(checkpoints=("ckpt",)).to_bytes())


def sweep(bucket: S3Place, told: Told, grace: float = 0.0) -> FolderReport:
    options = {"max_attempts": "2", "retry_delay": "1ms"}
    folder = _internal.ObjectFolder(bucket.uri, options, bucket.credentials)
    (report,) = Collector(folder, told, grace=grace, clock=lambda: 9e9, delete=True).run()
    return report


def test_a_root_is_swept_and_names_outside_of_it_stay(bucket: S3Place) -> None:
    outside = [f"logs/query/default/log/{1:032x}", f"query/default/log/{1:032x}"]
    foreign = [f"{FOLDER}/readme", f"{FOLDER}/log/deep/er"]
    for name in [*OBJECTS, *outside, *foreign]:
        bucket.write(name, b"12345")
    write_notes(bucket)
    nothing_yet = Told(ckpt=roots("query", {}))
    first = sweep(bucket, nothing_yet)
    assert first.kept_because is None
    assert {f"{FOLDER}/{e.name}" for e in first.waiting} == set(OBJECTS)
    assert {e.size for e in first.waiting} == {5}
    second = sweep(bucket, nothing_yet)
    assert {f"{FOLDER}/{e.name}" for e in second.deleted} == set(OBJECTS)
    left = {*outside, *foreign, *(f"{FOLDER}/{name}" for name in (FOLDER_META, GC_STATE, GC_CHECKPOINTS))}
    assert set(bucket.names()) == left


def test_age_is_by_the_stores_clock(bucket: S3Place) -> None:
    """The machine's clock is centuries ahead; the object is a second old."""
    bucket.write(OBJECTS[0], b"")
    write_notes(bucket)
    for _ in range(2):
        report = sweep(bucket, Told(ckpt=roots("query", {})), grace=3600.0)
        assert [e.name for e in report.young] == [OBJECTS[0].removeprefix(f"{FOLDER}/")]
    assert OBJECTS[0] in bucket.names()


def test_a_store_that_refuses_is_said_and_the_next_sweep_goes_on(bucket: S3Place) -> None:
    for name in OBJECTS:
        bucket.write(name, b"")
    write_notes(bucket)
    told = Told(ckpt=roots("query", {}))
    bucket.proxy.always(Refuse(403, "AccessDenied"), on=PUT)
    assert "not to the end" in str(sweep(bucket, told).kept_because)
    bucket.proxy.heal()
    sweep(bucket, told)
    bucket.proxy.always(Refuse(403, "AccessDenied"), on=DELETE)
    assert "not to the end" in str(sweep(bucket, told).kept_because)
    assert set(OBJECTS) <= set(bucket.names())
    assert GcState.from_bytes(bucket.read(f"{FOLDER}/{GC_STATE}")).unreachable_since.keys() == {
        name.removeprefix(f"{FOLDER}/") for name in OBJECTS
    }
    bucket.proxy.heal()
    assert len(sweep(bucket, told).deleted) == len(OBJECTS)


@pytest.mark.case("P6")
@pytest.mark.parametrize("kind", [LIST, GET, PUT, DELETE])
def test_503_beyond_all_attempts_deletes_nothing(bucket: S3Place, kind: str) -> None:
    for name in OBJECTS:
        bucket.write(name, b"")
    write_notes(bucket)
    told = Told(ckpt=roots("query", {}))
    sweep(bucket, told)
    bucket.proxy.always(Refuse(503), on=kind)
    for _ in range(2):
        try:
            said = str(sweep(bucket, told).kept_because)
        except FastChangelogError as error:  # what is read before any folder is looked at
            said = str(error)
        assert "503" in said
    assert set(OBJECTS) <= set(bucket.names())
    bucket.proxy.heal()
    report = sweep(bucket, told)
    assert (report.kept_because, len(report.deleted)) == (None, len(OBJECTS))
