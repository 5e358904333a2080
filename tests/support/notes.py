"""Notes of state folders, written as docs/format.md says and not by the code under test.

Owns: a note with a right checksum, and a note with something changed in it.
Does not own: what a note means.
"""

from __future__ import annotations

import json
from typing import Any


def crc32c(data: bytes) -> int:
    """The checksum of `123456789` is 0xE3069283.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def sealed(fields: dict[str, Any]) -> bytes:
    """A note of these fields, with their checksum."""
    fields = {name: value for name, value in fields.items() if name != "crc32c"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**fields, "crc32c": f"{crc32c(text.encode()):08x}"}, indent=2).encode()


def folder_note(**fields: Any) -> bytes:
    """The note of a query of one shard; `fields` say otherwise."""
    named = {"query_id": "query", "name": "default"}
    counted = {"shards": 1, "max_parallelism": 128, "sweep_grace_seconds": 86_400}
    return sealed({"format": 2, **named, **counted, **fields})


def changed(note: bytes, **fields: Any) -> bytes:
    """The note with other fields and a right checksum."""
    return sealed({**json.loads(note), **fields})
