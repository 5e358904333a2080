"""The changelog by itself, as Python programs use it: data in and out, futures, errors.

Owns: what the Python face adds to the core. Does not own: the log's semantics; those are tested in
`rust/changelog`. Processes that fork or die: `test_changelog_process`.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastchangelog as fc
from support.waiting import until

PATIENCE = 60


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[fc.ChangelogStorage]:
    options = {"file_sync": False, "compression": "none"}
    with fc.ChangelogStorage(str(tmp_path / "log"), options=options) as opened:
        yield opened


def read(storage: fc.ChangelogStorage, handle: fc.ChangelogHandle, **part: Any) -> list[tuple[int, bytes]]:
    with storage.reader() as reader:
        return [(change.key_group, change.value) for change in reader.read(handle, **part)]


def durable(writer: fc.ChangelogWriter, from_sqn: int = 0, checkpoint_id: int = 1) -> fc.ChangelogHandle:
    return writer.persist(from_sqn, checkpoint_id).result(PATIENCE)


# ------------------------------------------------------------------------------------------------------------- data in


@pytest.mark.parametrize(
    "values",
    [
        [b"a", b"", b"ccc"],
        pa.array([b"a", b"", b"ccc"]),
        pa.array([b"a", b"", b"ccc"], pa.large_binary()),
        pa.array(["a", "", "ccc"]),
        pa.chunked_array([[b"a"], [b"", b"ccc"]]),
        pa.array([b"x", b"a", b"", b"ccc", b"y"]).slice(1, 3),
        (np.array([0, 1, 1, 4], np.int32), b"accc"),
        (np.array([0, 1, 1, 4], np.int64), bytearray(b"accc")),
        (pa.array([0, 1, 1, 4], pa.int32()), memoryview(b"accc")),
        ([1, 2, 2, 5], b"xaccc"),
    ],
    ids=lambda values: type(values).__name__,
)
@pytest.mark.parametrize(
    "groups",
    [[3, 1, 3], np.array([3, 1, 3], np.uint16), np.array([3, 1, 3]), pa.array([3, 1, 3], pa.uint16()), range(3, 0, -1)],
    ids=lambda groups: type(groups).__name__,
)
def test_a_batch_may_be_of_any_usual_type(storage: fc.ChangelogStorage, groups: Any, values: Any) -> None:
    writer = storage.writer("w", key_groups=range(8))
    writer.append_batch(groups, values)
    expected = sorted(zip([int(g) for g in groups], [b"a", b"", b"ccc"]), key=lambda change: change[0])
    assert read(storage, durable(writer)) == expected


def test_fixed_size_values(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(8))
    writer.append_batch([1, 1], pa.array([b"abc", b"def"], pa.binary(3)))
    assert read(storage, durable(writer)) == [(1, b"abc"), (1, b"def")]


@pytest.mark.parametrize(
    ("groups", "values", "named"),
    [
        ([1, 9], [b"a", b"b"], "key group 9"),
        ([1, -1], [b"a", b"b"], "key groups"),
        ([1, 70_000], [b"a", b"b"], "key groups"),
        ([1], [b"a", b"b"], "1 key groups and 2 values"),
        ([1, 2], [b"a", None], "nulls"),
        ([1, None], [b"a", b"b"], "nulls"),
        ([1, 2], [1, 2], "bytes"),
        ([1, 2], (np.array([0, 1, 9]), b"ab"), "offsets"),
        ([1, 2], (np.array([0, 2, 1]), b"ab"), "offsets"),
    ],
)
def test_a_refused_batch_leaves_nothing(storage: fc.ChangelogStorage, groups: Any, values: Any, named: str) -> None:
    writer = storage.writer("w", key_groups=range(8))
    with pytest.raises(fc.InvalidArgumentError, match=named):
        writer.append_batch(groups, values)
    assert writer.next_sequence_number == 0


def test_single_changes(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(4, 8))
    assert (writer.name, writer.key_groups, writer.initial_sequence_number) == ("w", range(4, 8), 0)
    writer.append(7, b"seven")
    writer.append_meta(b"about")
    writer.append(4, b"")
    for wrong in (3, 8, -1, 1 << 40):
        with pytest.raises(fc.InvalidArgumentError, match="key group"):
            writer.append(wrong, b"x")
    with pytest.raises(TypeError):
        writer.append(7, "text")  # type: ignore[arg-type]
    handle = durable(writer)
    assert read(storage, handle) == [(-1, b"about"), (4, b""), (7, b"seven")]
    assert (len(handle), handle.size, handle.key_groups) == (3, 10, range(4, 8))


@pytest.mark.case("A-05")
@given(
    appends=st.lists(st.tuples(st.integers(-1, 15), st.binary(max_size=40)), max_size=80),
    cuts=st.sets(st.integers(0, 79)),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
)
@settings(max_examples=60, deadline=None)
def test_what_is_read_is_what_was_appended(appends: list[tuple[int, bytes]], cuts: set[int], compression: str) -> None:
    with fc.ChangelogStorage("memory://log", options={"compression": compression}) as storage:
        writer = storage.writer("w", key_groups=range(16))
        sets: list[list[tuple[int, bytes]]] = [[]]
        for number, (group, value) in enumerate(appends):
            if number in cuts and sets[-1]:
                assert writer.rollover() == len(sets)
                sets.append([])
            if group < 0:
                writer.append_meta(value)
            else:
                writer.append(group, value)
            sets[-1].append((group, value))
        expected = [change for one in sets for change in sorted(one, key=lambda change: change[0])]
        handle = durable(writer)
        assert read(storage, handle) == expected
        part = read(storage, handle, key_groups=range(3, 9))
        assert part == [change for change in expected if change[0] == -1 or 3 <= change[0] < 9]


@pytest.mark.case("A-11")
def test_records_from_one_byte_to_a_hundred_megabytes(tmp_path: Path) -> None:
    options = {"file_sync": False, "compression": "none", "max_in_flight": "16MiB"}
    with fc.ChangelogStorage(str(tmp_path), options=options) as storage:
        writer = storage.writer("w", key_groups=range(2))
        large = os.urandom(1 << 20) * 100
        writer.append(1, b"1")
        writer.append(0, large)
        writer.append_batch([1] * 100_000, [b"2"] * 100_000)
        found = read(storage, durable(writer))
        assert sum(1 for group, value in found if group == 1 and len(value) == 1) == 100_001
        assert [value == large for group, value in found if group == 0] == [True]


# ------------------------------------------------------------------------------------------- futures, handles, reading


def test_futures_end_with_handles_in_any_order(storage: fc.ChangelogStorage) -> None:
    writers = [storage.writer(f"w{i}", key_groups=range(4)) for i in range(8)]
    futures = []
    for checkpoint in range(1, 6):
        for writer in writers:
            writer.append(1, f"{writer.name} {checkpoint}".encode())
            futures.append(writer.persist(checkpoint - 1, checkpoint))
    assert not wait(futures, timeout=PATIENCE).not_done
    for future in futures:
        handle = future.result()
        assert read(storage, handle) == [(1, f"{handle.writer} {handle.checkpoint_id}".encode())]


def test_a_handle_is_a_value(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(4))
    writer.append(1, b"x" * 100)
    handle = durable(writer)
    again = fc.ChangelogHandle.from_bytes(handle.to_bytes())
    assert handle == again == pickle.loads(pickle.dumps(handle))
    assert len({handle, again}) == 1
    assert handle != durable(writer, 0, 2)
    shown = handle.to_dict()
    assert shown["writer"] == "w"
    assert shown["sets"][0]["records"] == 1
    assert "w" in repr(handle)
    with pytest.raises(AttributeError):
        handle.size = 3  # type: ignore[misc]
    with pytest.raises(fc.CorruptDataError):
        fc.ChangelogHandle.from_bytes(handle.to_bytes()[:-1])


def test_an_empty_range_is_an_empty_handle(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(4))
    handle = durable(writer)
    assert (len(handle), handle.size, bool(handle), read(storage, handle)) == (0, 0, True, [])


def test_batches_are_arrow(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(4))
    writer.append_meta(b"m")
    writer.append_batch([3, 0], [b"three", b"zero"])
    writer.rollover()
    writer.append(2, b"two")
    with storage.reader() as reader:
        table = pa.Table.from_batches(list(reader.read_batches(durable(writer))))
    assert table.schema == pa.schema(
        [
            pa.field("key_group", pa.int32(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
            pa.field("sequence_number", pa.int64(), nullable=False),
        ]
    )
    assert table.to_pydict() == {
        "key_group": [-1, 0, 3, 2],
        "value": [b"m", b"zero", b"three", b"two"],
        "sequence_number": [0, 0, 0, 1],
    }


@pytest.mark.case("P-05")
def test_another_process_reads_with_the_handle_alone(tmp_path: Path) -> None:
    with fc.ChangelogStorage(str(tmp_path)) as storage:
        writer = storage.writer("w", key_groups=range(4))
        writer.append(1, b"kept")
        handle = durable(writer)
    with fc.ChangelogStorage(str(tmp_path)) as storage:
        assert read(storage, handle) == [(1, b"kept")]
    with fc.ChangelogStorage(str(tmp_path / "elsewhere")) as storage:
        with pytest.raises(fc.InvalidArgumentError, match="elsewhere"):
            read(storage, handle)
        with pytest.raises(fc.StateNotFoundError, match="log/"):
            read(storage, handle.moved_to(storage.uri))


@pytest.mark.case("P9")
def test_a_changed_file_is_named(tmp_path: Path) -> None:
    with fc.ChangelogStorage(str(tmp_path)) as storage:
        writer = storage.writer("w", key_groups=range(4))
        writer.append(1, b"a value")
        handle = durable(writer)
        (file,) = [path for path in (tmp_path / "log").iterdir() if path.is_file()]
        good = file.read_bytes()
        for at in range(16, len(good) - 40):
            file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(fc.CorruptDataError, match=file.name):
                read(storage, handle)
        for length in range(len(good)):
            file.write_bytes(good[:length])
            with pytest.raises(fc.CorruptDataError, match=file.name):
                read(storage, handle)


def test_many_threads_share_a_writer_and_a_reader(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(8))

    def append(group: int) -> None:
        for number in range(2_000):
            writer.append(group, number.to_bytes(4, "big"))

    threads = [threading.Thread(target=append, args=(group,)) for group in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle = durable(writer)
    in_order = [number.to_bytes(4, "big") for number in range(2_000)]
    with storage.reader() as reader:
        found: list[list[bytes]] = [[] for _ in range(8)]

        def part(group: int) -> None:
            found[group] = [change.value for change in reader.read(handle, key_groups=range(group, group + 1))]

        threads = [threading.Thread(target=part, args=(group,)) for group in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [in_order] * 8


# ---------------------------------------------------------------------------------------------------- errors, and close


@pytest.mark.case("F-01", "P-07")
def test_use_after_close_and_names(storage: fc.ChangelogStorage) -> None:
    with storage.writer("w", key_groups=range(4)) as writer:
        with pytest.raises(fc.InvalidArgumentError, match="`w` is open"):
            storage.writer("w", key_groups=range(4))
        writer.append(1, b"lost")
    assert writer.closed
    for call in (
        lambda: writer.append(1, b"x"),
        lambda: writer.append_batch([1], [b"x"]),
        lambda: writer.persist(0, 1),
        lambda: writer.rollover(),
    ):
        with pytest.raises(fc.ClosedError):
            call()
    reader = storage.reader()
    handle = durable(storage.writer("w", key_groups=range(4)))
    reader.close()
    with pytest.raises(fc.ClosedError):
        list(reader.read(handle))
    storage.close()
    storage.close()
    with pytest.raises(fc.ClosedError):
        storage.writer("v", key_groups=range(4))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda w: w.persist(-1, 1), "-1 is negative"),
        (lambda w: w.persist(5, 1), "no change has the sequence number 5 yet"),
        (lambda w: w.persist(0, -1), "checkpoint id"),
        (lambda w: w.confirm(1, 0, 1), "not a range"),
        (lambda w: w.confirm(0, 9, 1), "not a range"),
        (lambda w: w.reset(0, 9, 1), "not a range"),
        (lambda w: w.truncate(9), "9"),
    ],
)
def test_foreign_numbers_are_refused(storage: fc.ChangelogStorage, call: Any, named: str) -> None:
    writer = storage.writer("w", key_groups=range(4))
    writer.append(1, b"x")
    with pytest.raises(fc.InvalidArgumentError, match=named):
        call(writer)


@pytest.mark.parametrize("key_groups", [range(0), range(40_000), range(0, 8, 2), [1, 2]])
def test_key_groups_are_a_range(storage: fc.ChangelogStorage, key_groups: Any) -> None:
    with pytest.raises(fc.InvalidArgumentError):
        storage.writer("w", key_groups=key_groups)


@pytest.mark.case("P-01")
def test_a_path_or_its_uri_is_a_storage(tmp_path: Path) -> None:
    for uri in (str(tmp_path / "path"), (tmp_path / "uri").as_uri()):
        with fc.ChangelogStorage(uri) as storage:
            writer = storage.writer("w", key_groups=range(4))
            writer.append(1, b"kept")
            assert read(storage, durable(writer)) == [(1, b"kept")]


@pytest.mark.case("P-02")
def test_options_are_named(tmp_path: Path) -> None:
    for options, named in (
        ({"persist_dealy": "1s"}, "`persist_delay`"),
        ({"persist_delay": 10}, "persist_delay"),
        ({"memory_budget": "1GiB"}, "no effect"),
        ({"persist_size_threshold": "2GiB"}, "max_in_flight"),
    ):
        with pytest.raises(fc.InvalidArgumentError, match=named):
            fc.ChangelogStorage(str(tmp_path), options=options)
    with pytest.raises(fc.InvalidArgumentError, match="s4"):
        fc.ChangelogStorage("s4://bucket/log")


def test_a_store_that_refuses_fails_the_future_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with fc.ChangelogStorage(str(tmp_path), options={"max_attempts": 1}) as storage:
        writer = storage.writer("w", key_groups=range(4))
        writer.append(1, b"kept")
        folder.write_text("a file where the folder should be")
        error = writer.persist(0, 1).exception(PATIENCE)
        assert isinstance(error, fc.FastChangelogError)
        assert "log/" in str(error)
        assert "\n" not in str(error)
        folder.unlink()
        assert read(storage, durable(writer, 0, 2)) == [(1, b"kept")]


def test_the_life_of_objects(storage: fc.ChangelogStorage, tmp_path: Path) -> None:
    def objects() -> int:
        return sum(1 for path in (tmp_path / "log" / "log").iterdir())

    writer = storage.writer("w", key_groups=range(4))
    writer.append(1, b"first")
    first = durable(writer, 0, 1)
    writer.confirm(0, 1, checkpoint_id=1)
    writer.append(1, b"second")
    second = durable(writer, 1, 2)
    writer.confirm(1, 2, checkpoint_id=2)
    writer.truncate(1)
    assert read(storage, first) == [(1, b"first")], "truncated, but the checkpoint is retained"
    writer.subsume(1)
    until("the deletion", lambda: storage.metrics()["discards"] == 1)
    assert objects() == 1
    assert read(storage, second) == [(1, b"second")]
    kept = storage.sweep([], grace="1h")
    assert (kept.deleted, kept.kept) == ([], 1)
    writer.close()
    dry = storage.sweep([], grace="0s")
    assert (len(dry.deleted), objects()) == (1, 1)
    assert storage.sweep([second], grace="0s", dry_run=False).deleted == []
    assert storage.sweep([], grace="0s", dry_run=False).deleted == dry.deleted
    assert objects() == 0


@pytest.mark.case("U-02")
def test_nothing_stays_open(storage: fc.ChangelogStorage) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    writer = storage.writer("w", key_groups=range(4))
    writer.append(1, b"x")
    read(storage, durable(writer, 0, 1))
    before = descriptors()
    for checkpoint in range(2, 30):
        writer.append(1, b"x" * 1000)
        read(storage, durable(writer, 0, checkpoint))
    assert descriptors() <= before


def test_metrics_count(storage: fc.ChangelogStorage) -> None:
    writer = storage.writer("w", key_groups=range(4))
    for checkpoint in range(1, 6):
        writer.append(1, b"x")
        durable(writer, checkpoint - 1, checkpoint)
    # A future ends before the thread that ended it has let go of the bytes.
    until("the last upload's memory", lambda: storage.metrics()["in_flight_bytes"] == 0)
    found = storage.metrics()
    assert (found["log_objects"], found["change_sets"], found["store_requests"]) == (5, 5, 5)
    assert found["upload_queue_size"] == 0
