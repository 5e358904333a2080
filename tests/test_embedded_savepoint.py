"""Savepoints of embedded states: taken, moved, begun with, exported; and what must be refused."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import fastchangelog as fc
from fastchangelog import _internal, cli
from fastchangelog.errors import CorruptDataError, InvalidArgumentError, SchemaMismatchError, StateNotFoundError

FORMATS = ["canonical", "native"]


def fill(folder: Path, keys: int = 300) -> None:
    with fc.open_state(str(folder)) as st:
        visits = st.value_state("visits", key="string", value="long")
        names = st.value_state("names", key="long", value="a string, b double")
        visits.put_many([f"k{i}" for i in range(keys)], list(range(keys)))
        names[7] = {"a": "seven", "b": 0.5}


def content(folder: Path, **given: str) -> dict[str, int]:
    with fc.open_state(str(folder), **given) as st:
        names = st.value_state("names", key="long", value="a string, b double")
        assert names[7] == {"a": "seven", "b": 0.5}
        found: dict[str, int] = {}
        for batch in st.value_state("visits", key="string", value="long").scan():
            found.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
        return found


@pytest.mark.case("Y-15")
@pytest.mark.parametrize("format", FORMATS)
def test_a_state_begins_with_a_savepoint_and_needs_it_no_more(tmp_path: Path, format: str) -> None:
    fill(tmp_path / "state")
    with fc.open_state(str(tmp_path / "state")) as st:
        visits = st.value_state("visits", key="string", value="long")
        visits["late"] = -1
        handle = st.savepoint(str(tmp_path / "savepoint"), format=format)
        assert handle == st.handle
        visits["later"] = -2
    shutil.rmtree(tmp_path / "state")
    shutil.move(tmp_path / "savepoint", tmp_path / "moved")
    expected = {**{f"k{i}": i for i in range(300)}, "late": -1}
    assert content(tmp_path / "next", start_from=str(tmp_path / "moved")) == expected
    shutil.rmtree(tmp_path / "moved")
    # Begun is begun: a program that always names it may start again.
    assert content(tmp_path / "next", start_from=str(tmp_path)) == expected
    with fc.open_state(str(tmp_path / "next")) as st:
        assert st.handle is not None
        assert st.handle.state_keys == 302
        del st.value_state("visits", key="string", value="long")["late"]
    del expected["late"]
    assert content(tmp_path / "next") == expected


def test_what_was_begun_is_durable_without_a_checkpoint(tmp_path: Path) -> None:
    fill(tmp_path / "state")
    with fc.open_state(str(tmp_path / "state"), read_only=True) as st:
        st.savepoint(str(tmp_path / "savepoint"))
    st = fc.open_state(str(tmp_path / "next"), start_from=str(tmp_path / "savepoint"))
    st.close(checkpoint=False)
    assert len(content(tmp_path / "next")) == 300


def test_bad_input_is_named_with_its_remedy(tmp_path: Path) -> None:
    fill(tmp_path / "state")
    with fc.open_state(str(tmp_path / "state")) as st:
        with pytest.raises(InvalidArgumentError, match="canonical"):
            st.savepoint(str(tmp_path / "x"), format="parquet")
        st.savepoint(str(tmp_path / "savepoint"))
        with pytest.raises(InvalidArgumentError, match=r"not empty.*new folder"):
            st.savepoint(str(tmp_path / "savepoint"))
    begun = fc.open_state(str(tmp_path / "next"), start_from=str(tmp_path / "savepoint"))
    with begun as st, pytest.raises(SchemaMismatchError, match="bigint"):
        st.value_state("visits", key="string", value="string")
    with pytest.raises(StateNotFoundError, match="no savepoint in"):
        fc.open_state(str(tmp_path / "other"), start_from=str(tmp_path / "state"))
    (part,) = (tmp_path / "savepoint" / "part").iterdir()
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(CorruptDataError, match="copy it again"):
        fc.open_state(str(tmp_path / "other"), start_from=str(tmp_path / "savepoint"))
    part.unlink()
    with pytest.raises(StateNotFoundError, match=r"lacks one of its files.*part/000000"):
        fc.open_state(str(tmp_path / "other"), start_from=str(tmp_path / "savepoint"))
    manifest = tmp_path / "savepoint" / "_fastchangelog-savepoint"
    manifest.write_bytes(b"x" * 100)
    with pytest.raises(CorruptDataError, match="not a fastchangelog savepoint manifest"):
        fc.open_state(str(tmp_path / "other"), start_from=str(tmp_path / "savepoint"))


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("interval day to second", pa.duration("us"), datetime.timedelta(days=-3, microseconds=5)),
        ("interval hour to minute", pa.duration("us"), datetime.timedelta(hours=7)),
        ("time(6)", pa.time64("ns"), datetime.time(1, 2, 3, 4)),
        ("time(us)", pa.time64("us"), datetime.time(23, 59)),
    ],
)
def test_an_export_has_the_types_that_only_spark_names(
    tmp_path: Path, text: str, dtype: pa.DataType, value: object
) -> None:
    with fc.open_state(str(tmp_path / "state")) as st:
        kept = st.value_state("kept", key="int", value=text)
        assert kept.value_type == dtype
        kept.put_many([1, 2], pa.array([value, value], dtype))
        st.savepoint(str(tmp_path / "taken"))
    out = tmp_path / "out.parquet"
    assert cli.main(["export", str(tmp_path / "taken"), "--to", str(out)]) == cli.OK
    table = parquet.read_table(out)
    assert table.schema.field("value").type == dtype
    assert table["value"].combine_chunks().equals(pa.array([value, value], dtype))


def test_an_interval_of_months_is_refused_by_name(tmp_path: Path) -> None:
    with fc.open_state(str(tmp_path / "state")) as st, pytest.raises(InvalidArgumentError, match="no Arrow type"):
        st.value_state("kept", key="int", value="interval year to month")


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_takes_few_batches_and_may_be_given_up(tmp_path: Path, format: str) -> None:
    keys = 300_000
    with fc.open_state(str(tmp_path / "state")) as st:
        st.value_state("numbers", key="long", value="long").put_many(np.arange(keys)[::-1], np.arange(keys)[::-1] * 2)
        st.checkpoint()
        st.savepoint(str(tmp_path / "taken"), format=format)
    out = tmp_path / "numbers.parquet"
    assert cli.main(["export", str(tmp_path / "taken"), "--to", str(out)]) == cli.OK
    table = parquet.read_table(out)
    assert table["key"].to_pylist() == list(range(keys)), "in the order of keys"
    assert table["value"].to_pylist() == list(range(0, 2 * keys, 2))

    folder = _internal.SavepointFolder(str(tmp_path / "taken"), {}, {})
    types = pa.schema([pa.field("key", pa.int64(), False), pa.field("value", pa.int64())])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    entries = folder.entries(str(scratch), state=0, types=types)
    first = next(entries)
    assert 0 < first.num_rows < keys, "more come later"
    del entries, folder
    assert list(scratch.iterdir()) == [], "an abandoned iterator waits for the work that it started"


@pytest.mark.parametrize("format", FORMATS)
def test_commands_read_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str) -> None:
    fill(tmp_path / "state")
    taken = str(tmp_path / "savepoint")
    with fc.open_state(str(tmp_path / "state")) as st:
        st.savepoint(taken, format=format)
    assert cli.main(["verify", taken]) == cli.OK
    assert "0 damaged" in capsys.readouterr().out
    assert cli.main(["inspect", taken, "--json"]) == cli.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["format"], said["keys"], said["shards"], said["name"]) == (format, 301, 1, "default")
    assert cli.main(["export", taken, "--to", str(tmp_path / "x.parquet")]) == cli.COULD_NOT_RUN
    assert "--name" in capsys.readouterr().err
    for name, rows in (("visits", 300), ("names", 1)):
        out = tmp_path / f"{name}.parquet"
        assert cli.main(["export", taken, "--to", str(out), "--name", name]) == cli.OK
        capsys.readouterr()
        assert parquet.read_table(out).num_rows == rows
    assert parquet.read_table(tmp_path / "names.parquet").to_pylist() == [{"key": 7, "value": {"a": "seven", "b": 0.5}}]
    assert cli.main(["inspect", str(tmp_path)]) == cli.OK
    listed = capsys.readouterr().out
    assert "savepoint  savepoint" in listed
    assert "state/default" in listed
