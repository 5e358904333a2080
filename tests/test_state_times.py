"""The benchmark of an embedded state: what it prints, and that it leaves nothing in the store.

Owns: tiny runs of `benches/state_times.py`. Does not own: any figure of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from fastchangelog import _internal
from fastchangelog.errors import FastChangelogError

BENCHES = Path(__file__).resolve().parent.parent / "benches"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHES))
    import state_times

    return state_times


def test_it_measures_and_removes_what_it_wrote(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_text("stays")
    for rest in (["--json"], []):
        assert bench.main([str(tmp_path), "--keys", "30", "--checkpoints", "2", *rest]) == 0
        printed = capsys.readouterr().out
        if rest:
            rows = {row["what"]: row["result"] for row in json.loads(printed)}
            assert len(rows) >= 8
            assert all(result > 0 for result in rows.values())
        else:
            assert printed.splitlines()[0].split() == ["what", "result", "unit"]
    assert [path.name for path in tmp_path.rglob("*")] == ["other"]


def test_it_removes_the_objects_of_its_folder(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _internal.ObjectFolder("memory://benches/state", {}, {})
    folder.write("other", b"stays")
    assert bench.main(["memory://benches/state", "--keys", "30", "--checkpoints", "2"]) == 0
    assert "put_many" in capsys.readouterr().out
    assert [name for name, _, _ in folder.list("")] == ["other"]


def test_it_removes_what_it_wrote_when_it_is_interrupted(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def interrupted(*_: object) -> None:
        written.extend(path.name for path in tmp_path.rglob("*") if path.is_file())
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.main([str(tmp_path), "--keys", "30"])
    assert written
    assert not list(tmp_path.rglob("*"))


def test_wrong_arguments_are_refused_before_anything_is_written(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main([str(tmp_path), "--keys", "0"])
    assert end.value.code == 2
    assert "--keys" in capsys.readouterr().err
    with pytest.raises(FastChangelogError, match="does-not-exist; check the address"):
        bench.main([str(tmp_path / "does-not-exist")])
    with pytest.raises(FastChangelogError, match="NAME=VALUE"):
        bench.main([str(tmp_path), "--storage-option", "aws_region"])
    assert not list(tmp_path.iterdir())
