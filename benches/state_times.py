"""How fast an embedded state is on this machine with a store: writes, reads, checkpoints, a restore.

    state_times.py [URI] [--keys N] [--value-bytes N] [--checkpoints N] [--storage-option NAME=VALUE …] [--json]

Writes into a folder of its own under URI (default: the temp folder) and removes it at the end.

Owns: the measurements, the removal of what it writes. Does not own: the state, the comparison with Flink's
(state_compare).
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import fastchangelog as fc
from fastchangelog import _internal
from fastchangelog.cli.arguments import add_store, pairs
from fastchangelog.cli.output import print_json, print_table, status_line
from fastchangelog.hidden import Hidden
from fastchangelog.options import existing_folder, gather_storage_options, local_path

if TYPE_CHECKING:
    from fastchangelog.embedded.state import State
    from fastchangelog.state.value import ValueState

FOLDER = "fastchangelog-bench-"
"""The folder of a run begins with this; it is removed at the end."""
BATCH = 10_000
"""Keys of one call of a method for many keys."""
SINGLE = 10_000
"""Calls of methods for one key, at most."""
SMALL = 100
"""Changes between two of the checkpoints whose latency is measured."""


def main(argv: list[str] | None = None) -> int:
    """Measures; prints a table, or JSON."""
    args = _arguments(argv)
    storage_options = Hidden(pairs("--storage-option", args.storage_option))
    say = status_line(args) or (lambda _: None)
    with _folder(args.uri, storage_options) as uri:
        rows = _measure(uri, storage_options, args, say)
    say("")
    if args.json:
        print_json(rows)
    else:
        print_table([["what", "result", "unit"], *([r["what"], _number(r["result"]), r["unit"]] for r in rows)])
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("uri", nargs="?", help="such as /data or s3://bucket/tmp; by default the temp folder")
    parser.add_argument("--keys", type=_at_least_one, default=100_000, help="keys of the state (default: %(default)s)")
    parser.add_argument(
        "--value-bytes", type=_at_least_one, default=100, help="bytes of a value (default: %(default)s)"
    )
    parser.add_argument(
        "--checkpoints", type=_at_least_one, default=50, help="checkpoints to take (default: %(default)s)"
    )
    add_store(parser)
    return parser.parse_args(argv)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


@contextmanager
def _folder(uri: str | None, storage_options: Hidden[dict[str, str]]) -> Iterator[str]:
    """A folder for the run; removed with all its objects, also after an error or Ctrl-C."""
    path = local_path(existing_folder(uri)) if uri else None
    if not uri or path is not None:
        # Deleted objects would leave their folders behind here.
        with tempfile.TemporaryDirectory(prefix=FOLDER, dir=path) as local:
            yield local
        return
    child = f"{FOLDER}{secrets.token_hex(4)}"
    folder = _internal.ObjectFolder(uri, {}, gather_storage_options(uri, storage_options.show())).child(child)
    try:
        yield f"{uri.rstrip('/')}/{child}"
    finally:
        for name, _, _ in folder.list(""):
            folder.delete(name)


def _measure(
    uri: str, storage_options: Hidden[dict[str, str]], args: argparse.Namespace, say: Callable[[str], object]
) -> list[dict[str, Any]]:
    """One row of the table for each measurement."""
    keys, values = _data(args.keys, args.value_bytes)
    rows: list[dict[str, Any]] = []

    def add(what: str, result: float, unit: str) -> None:
        rows.append({"what": what, "result": result, "unit": unit})

    with fc.open_state(uri, storage_options=storage_options.show()) as st:
        state = st.value_state("bench", key="long", value="binary")
        say("writes of many keys")
        add("put_many, then a checkpoint", args.keys / _seconds(lambda: _fill(st, state, keys, values)), "keys/s")
        say("reads of many keys")
        add("get_many", args.keys / _seconds(lambda: _read(state, keys)), "keys/s")
        say("single keys")
        single, value = keys[:SINGLE].to_pylist(), values[0].as_py()
        add("put of one key", len(single) / _seconds(lambda: _each(state.put, single, value)), "keys/s")
        add("get of one key", len(single) / _seconds(lambda: _each(state.get, single)), "keys/s")
        st.checkpoint()
        say("checkpoints")
        latencies = sorted(_checkpoint(st, state, keys, values, number) for number in range(args.checkpoints))
        add(f"checkpoint of {SMALL} changes, median", 1e3 * latencies[len(latencies) // 2], "ms")
        add(f"checkpoint of {SMALL} changes, p99", 1e3 * latencies[len(latencies) * 99 // 100], "ms")
        used = st.metrics()
    say("restore")
    begun = time.perf_counter()
    with fc.open_state(uri, read_only=True, storage_options=storage_options.show()) as st:
        state = st.value_state("bench", key="long", value="binary")
        state.get_many(keys[:1])
        add("open and read one key", 1e3 * (time.perf_counter() - begun), "ms")
        _read(state, keys)
        add("open and read all keys", 1e3 * (time.perf_counter() - begun), "ms")
    add("requests of the writer to the store", used["store_requests"], "")
    add("log of the writer", used["log_bytes"] / 1e6, "MB")
    return rows


def _number(value: float) -> str:
    """Three digits at least.

    >>> _number(34262.7), _number(3.14159)
    ('34,263', '3.14')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _data(keys: int, value_bytes: int) -> tuple[pa.Array, pa.Array]:
    """Distinct keys in an order of chance, and a batch of values; the seed is fixed."""
    random = np.random.default_rng(1)
    order = random.permutation(keys).astype("i8")
    text = random.bytes(min(keys, BATCH) * value_bytes)
    return pa.array(order), pa.array(text[i : i + value_bytes] for i in range(0, len(text), value_bytes))


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _each(call: Callable[..., object], keys: list[int], *rest: object) -> None:
    for key in keys:
        call(key, *rest)


def _fill(st: State, state: ValueState, keys: pa.Array, values: pa.Array) -> None:
    for start in range(0, len(keys), BATCH):
        some = keys[start : start + BATCH]
        state.put_many(some, values[: len(some)])
        if start % (100 * BATCH) == 0:
            st.checkpoint()
    st.checkpoint()


def _read(state: ValueState, keys: pa.Array) -> None:
    for start in range(0, len(keys), BATCH):
        state.get_many(keys[start : start + BATCH])


def _checkpoint(st: State, state: ValueState, keys: pa.Array, values: pa.Array, number: int) -> float:
    """The seconds of a checkpoint after some changes."""
    start = number * SMALL % len(keys)
    some = keys[start : start + SMALL]
    state.put_many(some, values[: len(some)])
    return _seconds(st.checkpoint)


if __name__ == "__main__":
    sys.exit(main())
