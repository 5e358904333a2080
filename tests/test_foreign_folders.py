"""Folders that others use, too: what commands make of names and folders that are not of this library.

Owns: odd names, unreadable folders, the addresses that commands show. Does not own: what a sweep deletes (`test_gc_*`),
the listings themselves (the core).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import fastchangelog as fc
from fastchangelog import cli
from fastchangelog.gc.collector import Collector
from support.swept import MemoryFolder, Told, World

ODD = [b"x\x01y", b"\x1b[2J\x1b]0;owned\x07\rall is well", b"a\nb", b"a\xff"]
SHOWN = ["x\\u{1}y", "\\u{1b}[2J\\u{1b}]0;owned\\u{7}\\rall is well", "a\\nb", "a\\xff"]
USABLE = ["a%2Fb", "a*b", "~x", "a#b", "a\\b", "a?b", "with space", "ünï", "100%"]


def make(root: Path) -> str:
    """A state with one checkpoint under a root; its address."""
    with fc.open_state(str(root)) as st:
        st.value_state("v", key="string", value="long")["a"] = 1
        return st.uri


def value(uri: str) -> int:
    base, name = uri.rsplit("/", 1)
    with fc.open_state(base, name=name, read_only=True) as st:
        return int(st.value_state("v", key="string", value="long")["a"])


def beside(root: Path, name: bytes) -> None:
    """A copy of the state under another name: it looks like a state's folder."""
    shutil.copytree(os.fsencode(root / "default"), os.fsencode(root) + b"/" + name)


def unprintable(text: str) -> list[str]:
    return [c for c in text if not c.isprintable() and c != "\n"]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_is_foreign_and_in_no_other_states_way(
    tmp_path: Path, name: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    beside(tmp_path, name)
    shown = SHOWN[ODD.index(name)]
    for arguments in (["sweep"], ["sweep", "--delete", "--grace", "1s"]):
        assert cli.main([*arguments, str(tmp_path), "--json"]) == cli.FOUND
        found = json.loads(capsys.readouterr().out)
        assert found["unknown"] == [shown]
        assert [(f["name"], f["kept_because"]) for f in found["folders"]] == [("default", None)]
    assert cli.main(["inspect", str(tmp_path), "--json"]) == cli.OK
    rows = [(row["kind"], row["folder"]) for row in json.loads(capsys.readouterr().out)]
    assert rows == [("state", "default"), ("foreign", shown)]
    for command in ("inspect", "sweep"):
        cli.main([command, str(tmp_path)])
        said = capsys.readouterr()
        assert shown in said.out + said.err
        assert not unprintable(said.out + said.err), command


@pytest.mark.parametrize("name", USABLE)
def test_a_name_of_an_object_is_a_name_of_a_state(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    beside(tmp_path, os.fsencode(name))
    for arguments in (["sweep"], ["sweep", "--delete", "--grace", "1s"]):
        assert cli.main([*arguments, str(tmp_path), "--json"]) == cli.OK
        found = json.loads(capsys.readouterr().out)
        assert {f["name"]: f["kept_because"] for f in found["folders"]} == {"default": None, name: None}
        assert found["unknown"] == []


def test_the_names_of_a_root_itself_are_printed_with_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "\x1b[2J\x07\rall is well"
    make(root)
    for command in ("inspect", "sweep", "verify"):
        cli.main([command, str(root)])
        cli.main([command, str(tmp_path)])
        cli.main([command, str(root / "nothing\x1b here")])
        said = capsys.readouterr()
        assert not unprintable(said.out + said.err), command


@pytest.mark.parametrize("folder", [*USABLE, "ünï/çödé"])
def test_a_state_is_found_under_every_address_shown(
    tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = make(tmp_path / folder)
    assert value(uri) == 1, "the address that the state shows"
    assert cli.main(["inspect", str(tmp_path), "--json"]) == cli.OK
    [row] = json.loads(capsys.readouterr().out)
    assert value(row["uri"]) == 1
    assert row["folder"] == f"{folder}/default"
    assert value(str(tmp_path / row["folder"])) == 1, "a path"
    assert cli.main(["inspect", f"file://{tmp_path}"]) == cli.OK
    shown = capsys.readouterr().out.splitlines()[1].removeprefix("state").strip().split("  ")[0]
    assert value(f"file://{tmp_path}/{shown}") == 1, "a URI and the folder that is listed under it"
    for address in (uri, row["uri"], f"file://{tmp_path}/{shown}"):
        assert cli.main(["inspect", address]) == cli.OK
        assert cli.main(["sweep", address.rsplit("/", 1)[0]]) == cli.OK


def test_a_states_name_may_be_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a*b", "per%20cent", "100%", "hash#1", "~", "x\x1b"):
        with fc.open_state(str(tmp_path), name=name) as st:
            st.value_state("v", key="string", value="long")["a"] = 1
            shown = st.uri
        with fc.open_state(str(tmp_path), name=name, create=False) as st:
            assert st.value_state("v", key="string", value="long")["a"] == 1
            assert st.uri == shown
        assert cli.main(["inspect", shown]) == cli.OK, name
    capsys.readouterr()
    assert cli.main(["sweep", str(tmp_path), "--json"]) == cli.OK
    folders = json.loads(capsys.readouterr().out)["folders"]
    assert [folder["kept_because"] for folder in folders] == [None] * 6


def test_a_file_uri_with_a_fragment_is_no_other_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a")
    for command in ("inspect", "sweep"):
        assert cli.main([command, f"file://{tmp_path}/a#b"]) == cli.COULD_NOT_RUN
        assert "%23" in capsys.readouterr().err


_AS_ANOTHER_USER = """
import os, sys, json, contextlib, io
from fastchangelog import cli
from fastchangelog.cli import command_line, listing, spark_session
import fastchangelog as fc, fastchangelog.gc.collector, fastchangelog.savepoints.savepoint, fastchangelog.catalog
command_line._parser(), fc.open_state, fc.ChangelogStorage
import pyarrow.compute, fastchangelog.embedded.state
root = sys.argv[1]
if os.getuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
for command in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.main([*command, root])
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


def test_an_unreadable_folder_is_foreign_and_in_nobodys_way() -> None:
    """The root is the top of a volume: `lost+found` is of the machine's administrator."""
    # Not below pytest's own folder, which another user cannot enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        root = Path(place)
        make(root)
        (root / "lost+found").mkdir(mode=0o700)
        (root / "closed").mkdir()
        (root / "closed" / "file").write_bytes(b"1")
        for path in (root, *root.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (root / "lost+found").chmod(0o700 if os.getuid() == 0 else 0)
        (root / "closed").chmod(0o744 if os.getuid() == 0 else 0o444)
        commands = [["inspect", "--json"], ["inspect"], ["sweep"], ["sweep", "--delete", "--grace", "1s"]]
        arguments = [sys.executable, "-c", _AS_ANOTHER_USER, str(root), json.dumps(commands)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        for path in ("lost+found", "closed"):
            (root / path).chmod(0o777)
    assert [code for code, _, _ in answers] == [cli.OK, cli.OK, cli.FOUND, cli.FOUND], done.stderr or answers
    rows = json.loads(answers[0][1])
    assert [(row["kind"], row["folder"]) for row in rows] == [
        ("state", "default"),
        ("foreign", "closed/file"),
        ("foreign", "lost+found"),
    ]
    for _, out, err in answers[1:]:
        assert "lost+found (it cannot be read" in out + err
        assert "default" in out
        assert "nothing deleted" not in out


def test_an_unreadable_folder_of_a_state_keeps_everything_of_it(tmp_path: Path) -> None:
    make(tmp_path)
    world = World.of(tmp_path)

    class Hidden(MemoryFolder):
        def child(self, folder: str) -> Hidden:
            return Hidden(self._world, f"{self._prefix}{folder}/")

        def survey(self, prefix: str) -> tuple[list[tuple[str, int, float]], dict[str, str]]:
            return self.list(prefix), {"sst": "it cannot be read: Permission denied"} if self._prefix else {}

    (report,) = Collector(Hidden(world), Told(), grace=1.0, clock=lambda: 1e9, delete=True).run()
    assert "sst belongs to the state" in str(report.kept_because)
