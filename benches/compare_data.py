"""Generated inputs of the comparison with Spark: folders of parquet files, two for each micro-batch.

Owns: the shape of the data, its seed, and the cache of generated folders. Does not own: which sizes are measured.

Columns: `key` string, `ts` timestamp in microseconds, `amount` double. The first batch holds every key once, so that
what is measured afterwards meets a state of full size. Keys of the other batches are drawn evenly: no key is hot.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES_PER_BATCH = 2
SCHEMA = "key string, ts timestamp, amount double"
_SEED = 42


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of one input."""

    keys: int
    rows: int
    batches: int
    #: Length of a key in bytes; 0 = as short as it comes.
    key_bytes: int = 0
    #: Batches that together hold every key once, before the others.
    seed_batches: int = 1
    #: Of 100 rows so many have one and the same key.
    hot_percent: int = 0

    @property
    def name(self) -> str:
        """Folder of this input."""
        sizes = f"k{self.keys}-r{self.rows}-b{self.batches}-l{self.key_bytes}-s{self.seed_batches}"
        return f"{sizes}-h{self.hot_percent}"


def folder(root: Path, shape: Shape) -> Path:
    """The input's folder, generated unless it is there."""
    target = root / shape.name
    if target.exists():
        return target
    making = root / f"{shape.name}.new"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(shape.keys)
    for batch in range(shape.seed_batches + shape.batches):
        if batch < shape.seed_batches:
            ids = np.array_split(order, shape.seed_batches)[batch]
        else:
            ids = rng.integers(0, shape.keys, shape.rows)
            ids[rng.random(shape.rows) * 100 < shape.hot_percent] = 0
        _write(making, batch, _table(ids, batch, shape.key_bytes, rng))
    making.rename(target)
    return target


def _table(ids: np.ndarray, batch: int, key_bytes: int, rng: np.random.Generator) -> pa.Table:
    text = np.char.add("user-", ids.astype("U10"))
    if key_bytes:
        text = np.char.ljust(text, key_bytes, "x")
    stamps = 1_700_000_000_000_000 + batch * 10_000_000 + rng.integers(0, 10_000_000, len(ids))
    return pa.table(
        {
            "key": pa.array(text),
            "ts": pa.array(stamps, pa.timestamp("us", tz="UTC")),
            "amount": pa.array(rng.random(len(ids)) * 100),
        }
    )


def _write(target: Path, batch: int, table: pa.Table) -> None:
    """Time stamps a second apart: Spark's file source takes files in their order."""
    step = -(-table.num_rows // FILES_PER_BATCH)
    for part in range(FILES_PER_BATCH):
        path = target / f"b{batch:04d}-{part}.parquet"
        pq.write_table(table.slice(part * step, step), path)
        stamp = 1_600_000_000 + batch * FILES_PER_BATCH + part
        os.utime(path, (stamp, stamp))


def files(source: Path, first: int, count: int) -> str:
    """A glob for `count` batches from `first` on."""
    return str(source / ("{" + ",".join(f"b{i:04d}" for i in range(first, first + count)) + "}-*.parquet"))
