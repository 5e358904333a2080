"""A changelog as these tests use it: opened quickly to fail, written, read back.

Owns: the options of the tests, one way to write a log and one to read it.
Does not own: what is expected of them (the tests).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import fastchangelog as fc
from support.stores.places import Place

GROUPS = range(128)
BOUND = 60.0
"""Seconds that anything may take: only a broken changelog needs them."""

ATTEMPTS = 4

OPTIONS: dict[str, Any] = {
    "max_attempts": ATTEMPTS,
    "retry_delay": "1ms",
    "persist_delay": "0s",
    "local_recovery": False,  # what is read comes from the store
}


def open_log(
    place: Place | None = None,
    *,
    uri: str | None = None,
    options: Mapping[str, Any] = {},
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """A `ChangelogStorage` at the place; what is given wins over the place's own, and options over `OPTIONS`."""
    if place is not None:
        uri = place.uri if uri is None else uri
        storage_options = place.credentials if storage_options is None else storage_options
    assert uri is not None, "give a place or a URI"
    return fc.ChangelogStorage(uri, options={**OPTIONS, **options}, storage_options=storage_options)


def write_log(storage: Any, values: Sequence[bytes], name: str = "operator") -> Any:
    """The handle of a log with these values, the n-th in key group n mod 128: one change set, durable and confirmed."""
    with storage.writer(name, key_groups=GROUPS) as writer:
        start = writer.initial_sequence_number
        append(writer, values)
        handle = writer.persist(start, checkpoint_id=1).result(timeout=BOUND)
        writer.confirm(start, writer.next_sequence_number, checkpoint_id=1)
    return handle


def append(writer: Any, values: Sequence[bytes]) -> None:
    """Appends the values, the n-th to key group n mod 128."""
    for number, value in enumerate(values):
        writer.append(number % len(GROUPS), value)


def expected(values: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """What `read_log` gives for a log of these values: ascending key groups, each in the order of its appends."""
    return sorted(((number % len(GROUPS), value) for number, value in enumerate(values)), key=lambda pair: pair[0])


def read_log(storage: Any, handle: Any, cache: Path | None = None) -> list[tuple[int, bytes]]:
    """Key groups and values of all changes, in order."""
    with storage.reader(cache_dir=cache) as reader:
        return [(change.key_group, bytes(change.value)) for change in reader.read(handle)]


def write_and_read(storage: Any, values: Sequence[bytes]) -> Any:
    """Shows that what is written is read back; the handle."""
    handle = write_log(storage, values)
    assert read_log(storage, handle) == expected(values)
    return handle


def refused(
    place: Place | None,
    kinds: type[BaseException] | tuple[type[BaseException], ...],
    *,
    uri: str | None = None,
    options: Mapping[str, Any] = {},
    storage_options: Mapping[str, Any] | None = None,
) -> BaseException:
    """The error that opening or writing a log at the place ends with: it may be found out at either."""
    with (
        pytest.raises(kinds) as caught,
        open_log(place, uri=uri, options=options, storage_options=storage_options) as storage,
    ):
        write_log(storage, [b"refused"])
    return caught.value


def random_values(count: int, size: int) -> list[bytes]:
    """Values that no compression makes smaller; the same each time."""
    source = random.Random(count * 1_000_003 + size)
    return [source.randbytes(size) for _ in range(count)]
