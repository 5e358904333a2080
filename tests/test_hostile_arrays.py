"""Arrow arrays with hostile contents never break the interpreter: they are refused with a clean error or read right."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import fastchangelog as fc
from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json

EXAMPLES = 400
PROGRAM = "support.hostile_arrays"


@pytest.mark.timeout(600)
def test_hostile_arrays_are_refused_or_read_right(tmp_path: Path) -> None:
    seed = int(os.environ.get("FASTCHANGELOG_SEED") or random.randrange(2**32))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-X", "faulthandler", "-m", PROGRAM, str(tmp_path), str(seed), str(EXAMPLES)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert ran.returncode == 0, f"FASTCHANGELOG_SEED={seed}: ended with {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    # A panic that was caught is said on stderr.
    assert "panicked" not in ran.stderr, f"FASTCHANGELOG_SEED={seed}\n{ran.stderr}"
    seen = ast.literal_eval(ran.stdout.splitlines()[-1])
    for refused, taken in (*((w, w) for w in ("split", "patched", "put", "encode")), ("row splitter", "rows")):
        assert seen[f"{refused}: refused"] > 0, f"FASTCHANGELOG_SEED={seed}: {seen}"
        assert seen[f"{taken}: taken"] > 0, f"FASTCHANGELOG_SEED={seed}: {seen}"


NOT_UTF8 = pa.array([b"a", b"a\xff", None], pa.binary())


def test_a_string_that_is_not_utf8_is_split_as_its_bytes() -> None:
    dtype = pa.struct([("s", pa.string()), ("l", pa.list_(pa.string()))])
    nested = pa.StructArray.from_arrays(
        [NOT_UTF8, pa.ListArray.from_arrays([0, 1, 1, 3], NOT_UTF8)], names=["s", "l"]
    ).view(dtype)
    schema = pa.schema([("k", pa.string()), ("v", dtype)])
    calls = [AggregateSpec(fn, (1,), None, False, True, f"{fn}(v)") for fn in ("min", "last")]
    spec = spec_json(1, schema, pa.schema([("k", pa.string()), ("a", dtype), ("b", dtype)]), calls)
    splitter = _internal.Splitter(spec, 1, 128, 1 << 20)
    batch = pa.RecordBatch.from_arrays([NOT_UTF8.view(pa.string()), nested], schema=schema)
    payloads = splitter.push(batch) + splitter.finish()
    assert sum(pa.ipc.open_stream(payload).read_all().num_rows for _, payload in payloads) == 3
    with pytest.raises(InvalidArgumentError, match="type binary, but string is declared"):
        splitter.push(pa.RecordBatch.from_arrays([NOT_UTF8, nested], ["k", "v"]))


def test_a_state_in_process_refuses_text_that_is_not_utf8(tmp_path: Path) -> None:
    text = NOT_UTF8.slice(0, 2).view(pa.string())
    numbers = pa.array([1, 2], pa.int64())
    with fc.open_state(str(tmp_path), options={"file_sync": False}) as state:
        by_text = state.value_state("by text", key="string", value="long")
        texts = state.value_state("texts", key="long", value="string")
        lists = state.list_state("lists", key="long", value="string")
        sums = state.aggregating_state("sums", key="string", value="string", last=fc.last("value"))
        for put in (
            lambda: by_text.put_many(text, numbers),
            lambda: by_text.get_many(text),
            lambda: texts.put_many(numbers, text),
            lambda: lists.append_many(numbers, text),
            lambda: sums.add_many(text, text),
        ):
            with pytest.raises(InvalidArgumentError, match="not UTF-8"):
                put()
        assert by_text.get_many(["a"]).to_pylist() == [None]
        by_bytes = state.value_state("by bytes", key="binary", value="long")
        by_bytes.put_many(NOT_UTF8.slice(0, 2), numbers)
        assert by_bytes.get_many([b"a\xff"]).to_pylist() == [2]


@pytest.mark.parametrize(
    "array",
    [pa.array([[1]], pa.list_view(pa.int8())), pa.RunEndEncodedArray.from_arrays([1], [1])],
    ids=lambda array: str(array.type).split("<")[0],
)
def test_layouts_that_are_not_taken_are_named(array: pa.Array, tmp_path: Path) -> None:
    with fc.open_state(str(tmp_path), options={"file_sync": False}) as state:
        kept = state.value_state("numbers", key="long", value="long")
        with pytest.raises(InvalidArgumentError, match="is not supported"):
            kept._native.get(array)
