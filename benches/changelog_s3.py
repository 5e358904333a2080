"""A changelog in S3 behind a slow network: a persist beside one PUT of the same bytes, taken in turns.

    PYTHONPATH=tests python benches/changelog_s3.py [--latency-ms N] [--turns N] [--quick]

The server is moto, started here; between it and both clients stands a proxy that adds the latency to each request. What
is compared is the time that a store's own client (boto3) takes for a PUT with the time from `persist` until the handle,
in turns, so both meet the same minutes. Then: the requests of many small writers that persist together, and the bytes
of a reader of an eighth of the key groups.

Owns: the turns and the table. Does not own: the server and the proxy (`support.stores` of the tests),
values (changelog_flink).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from changelog_flink import Pool

import fastchangelog as fc
from support.stores.fault_proxy import FaultProxy
from support.stores.places import S3Place, s3_admin
from support.stores.servers import s3_server

GROUPS, VALUE = 128, 1_000
WRITERS, EIGHTH = 200, range(GROUPS // 8)


@contextmanager
def bucket(latency: float) -> Iterator[tuple[S3Place, Any]]:
    """A bucket behind the slow proxy, and boto3's client of the same proxy."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        del os.environ[name]
    with s3_server() as server, FaultProxy(server, latency=latency) as proxy:
        yield S3Place(s3_admin(server), proxy), s3_admin(proxy.host)


def storage(place: S3Place, **options: str) -> fc.ChangelogStorage:
    """The changelog of the bucket, without compression and without waiting for other writers."""
    every = {"compression": "none", "persist_delay": "0ms", "preemptive_persist_threshold": "64MiB", **options}
    return fc.ChangelogStorage(place.uri, options=every, storage_options=place.credentials)


def one_persist(place: S3Place, client: Any, size: int, turns: int) -> tuple[list[float], list[float]]:
    """Milliseconds of PUTs of boto3, and of ours from `persist` until the handle, in turns."""
    rows = size // VALUE
    pool = Pool(max(rows, 64), VALUE, 1, rows)
    groups = [row % GROUPS for row in range(rows)]
    puts, persists = [], []
    with storage(place) as log:
        writer = log.writer("one", key_groups=range(GROUPS))
        for turn in range(turns + 2):
            values = pool.take(turn * rows, rows)
            body = values.buffers()[2].to_pybytes()[:size]
            begun = time.perf_counter()
            client.put_object(Bucket=place.bucket, Key=f"put/{size}/{turn}", Body=body)
            puts.append((time.perf_counter() - begun) * 1e3)
            start = writer.next_sequence_number
            writer.append_batch(groups, values)
            begun = time.perf_counter()
            writer.persist(start, checkpoint_id=turn).result()
            persists.append((time.perf_counter() - begun) * 1e3)
    # The first two open connections.
    return puts[2:], persists[2:]


def many_writers(place: S3Place) -> tuple[int, float]:
    """PUTs, and milliseconds until all of many small writers are durable."""
    with storage(place, persist_delay="100ms") as log:
        writers = [log.writer(f"w{number}", key_groups=range(GROUPS)) for number in range(WRITERS)]
        for writer in writers:
            writer.append_batch([3] * 10, [b"x" * 100] * 10)
        before = place.proxy.counts()["PUT"]
        begun = time.perf_counter()
        futures = [writer.persist(0, checkpoint_id=1) for writer in writers]
        for future in futures:
            future.result()
        took = (time.perf_counter() - begun) * 1e3
        return place.proxy.counts()["PUT"] - before, took


def part_of_the_groups(place: S3Place, size: int) -> tuple[int, int]:
    """Bytes that come down for all key groups, and for an eighth of them."""
    rows = size // VALUE
    with storage(place) as log:
        writer = log.writer("part", key_groups=range(GROUPS))
        writer.append_batch([row % GROUPS for row in range(rows)], Pool(rows, VALUE, 2, rows).take(0, rows))
        handle = writer.persist(0, checkpoint_id=1).result()
        down = place.proxy.bytes_down
        with log.reader() as reader:
            begun = sum(down.values())
            rows_read = sum(batch.num_rows for batch in reader.read_batches(handle))
            everything = sum(down.values()) - begun
            part = sum(batch.num_rows for batch in reader.read_batches(handle, key_groups=EIGHTH))
            some = sum(down.values()) - begun - everything
        assert (rows_read, part) == (rows, sum(row % GROUPS in EIGHTH for row in range(rows)))
        return everything, some


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="few and small: shows that it works, no more")
    args = parser.parse_args()
    sizes = (10_000,) if args.quick else (10_000, 100_000, 1_000_000, 4_000_000)
    with bucket(args.latency_ms / 1e3) as (place, client):
        print(f"S3 behind {args.latency_ms:g} ms; one PUT of boto3, and a persist of the same bytes: p50 (lowest)")
        for size in sizes:
            puts, persists = one_persist(place, client, size, 2 if args.quick else args.turns)
            middle = [statistics.median(times) for times in (puts, persists)]
            print(
                f"  {size:>9,} B   PUT {middle[0]:6.1f} ({min(puts):.1f}) ms   persist {middle[1]:6.1f}"
                f" ({min(persists):.1f}) ms   {middle[1] / middle[0]:.2f}x"
            )
        requests, took = many_writers(place)
        print(f"  {WRITERS} writers: {requests} PUT, all durable after {took:.0f} ms")
        everything, some = part_of_the_groups(place, 100_000 if args.quick else 20_000_000)
        print(f"  reading 1/8 of the key groups: {some:,} of {everything:,} bytes, {some / everything:.3f}")


if __name__ == "__main__":
    main()
