"""The spec of an aggregation: the JSON text that describes state and results to the Rust core.

Owns: the shape of the text. Does not own: the source of its parts (`analyse`), their meaning (the Rust core).
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from typing import Literal, TypeAlias

import pyarrow as pa

__all__ = ["AggregateSpec", "Lifetime", "OutputMode", "Returned", "calls_json", "spec_json"]

VERSION = 1
#: The groups that a batch returns: those with rows in it, those that the watermark closed, or all.
OutputMode: TypeAlias = Literal["update", "append", "complete"]
#: The same, or those that the state did not have.
Returned: TypeAlias = OutputMode | Literal["new"]


@dataclasses.dataclass(frozen=True)
class AggregateSpec:
    """One aggregate over the columns of the input schema; `where` is None or the index of a boolean column."""

    fn: str
    args: tuple[int, ...]
    where: int | None
    ignore_nulls: bool
    ansi: bool
    identity: str


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """How long a group lives, from the time in the first aggregate on, which has no result then."""

    micros: int
    clock: Literal["processing", "watermark"]


def spec_json(
    num_keys: int,
    input: pa.Schema,
    output: pa.Schema,
    aggregates: list[AggregateSpec],
    *,
    windows: Mapping[str, int] | None = None,
    session_windows: bool = False,
    output_mode: Returned = "update",
    row_times: bool = False,
    lifetime: Lifetime | None = None,
) -> str:
    """The spec as text: stable for equal arguments, so that texts can be compared.

    With `windows` (`size`, `slide`, `start` in microseconds) the first key column is a time: in the input that of a
    row, in the output the end of a window. With `session_windows` the last two key columns are start and end of one.
    With `row_times` the input begins with the time by which a row is late, in front of the keys.
    """
    return json.dumps(
        {
            "version": VERSION,
            "num_keys": num_keys,
            "input": _schema_text(input),
            "output": _schema_text(output),
            "aggs": _calls(aggregates),
            **({} if windows is None else {"windows": dict(windows)}),
            **({"session_windows": True} if session_windows else {}),
            "output_mode": output_mode,
            **({"row_times": True} if row_times else {}),
            **({} if lifetime is None else {"lifetime": dataclasses.asdict(lifetime)}),
        },
        separators=(",", ":"),
    )


def calls_json(aggregates: list[AggregateSpec]) -> str:
    """The aggregates alone, as the spec has them."""
    return json.dumps(_calls(aggregates), separators=(",", ":"))


def _calls(aggregates: list[AggregateSpec]) -> list[dict[str, object]]:
    return [{**dataclasses.asdict(a), "args": list(a.args)} for a in aggregates]


def _schema_text(schema: pa.Schema) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema):
        pass
    return base64.b64encode(sink.getvalue().to_pybytes()).decode("ascii")
