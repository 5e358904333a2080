"""Shard ids: integers that Spark's hash partitioning sends to one partition each.

Owns: Spark's hash of an integer (Murmur3, 32 bits, seed 42) and the choice of one id per partition.
Does not own: which keys belong to a shard (the Rust splitter).
Pure Python, because the number of partitions is known in the task only.
"""

from __future__ import annotations

import functools

__all__ = ["shard_ids", "shard_of_id", "spark_hash"]

_MASK = 0xFFFF_FFFF


def spark_hash(value: int) -> int:
    """Spark's `hash` of an int: signed 32 bits.

    >>> spark_hash(0), spark_hash(1), spark_hash(42)
    (933211791, -559580957, 29417773)
    """
    k = value & _MASK
    k = (k * 0xCC9E2D51) & _MASK
    k = ((k << 15) | (k >> 17)) & _MASK
    k = (k * 0x1B873593) & _MASK
    h = 42 ^ k
    h = ((h << 13) | (h >> 19)) & _MASK
    h = (h * 5 + 0xE6546B64) & _MASK
    h ^= 4  # the length of an int
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & _MASK
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h & 0x8000_0000 else h


@functools.lru_cache(maxsize=16)
def shard_ids(partitions: int) -> tuple[int, ...]:
    """The id of each shard: `shard_ids(p)[i]` goes to partition `i` of `p`. Each is the smallest such integer.

    >>> shard_ids(2)
    (2, 0)
    """
    ids: dict[int, int] = {}
    candidate = 0
    while len(ids) < partitions:
        ids.setdefault(spark_hash(candidate) % partitions, candidate)
        candidate += 1
    return tuple(ids[p] for p in range(partitions))


def shard_of_id(shard_id: int, partitions: int) -> int:
    """The shard whose id this is; the inverse of `shard_ids`."""
    return spark_hash(shard_id) % partitions
