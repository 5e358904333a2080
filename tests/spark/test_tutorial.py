"""The tutorial runs as it is written, and its numbers are right.

Owns: its programs and commands, in their order, in a folder of their own. Does not own: examples of other pages
(`test_documentation`).
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from support.spark.lacks import needs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
_WINDOW = 600


def expected(folder: pathlib.Path) -> dict[tuple[str, int], int]:
    """The cents of each shop and end of a window."""
    sales = {}
    for path in [*folder.glob("events-before/*"), *folder.glob("events/*")]:
        for line in path.read_text().splitlines():
            sale = json.loads(line)
            sales[sale["id"]] = sale
    cents: dict[tuple[str, int], int] = collections.Counter()
    for sale in sales.values():
        cents[sale["shop"], sale["second"] // _WINDOW * _WINDOW + _WINDOW] += sale["cents"]
    return cents


@needs("own checkpoints")
def test_the_tutorial_is_right(tmp_path: pathlib.Path) -> None:
    text = PAGE.read_text()
    for program in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (tmp_path / program.splitlines()[0].removeprefix("# ")).write_text(program)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, command in (("python", ""), ("fastchangelog", "-m fastchangelog")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        (tools / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    shown = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
            )
            killed = "KILL" in command
            assert done.returncode == 0 or killed, f"{command}\n{done.stdout}\n{done.stderr[-4000:]}"
            shown.append(done.stdout)
    windows: dict[tuple[str, int], int] = {}
    silent = []
    for path in sorted(tmp_path.glob("out/*.jsonl")):
        for line in path.read_text().splitlines():
            shop, until, what, cents = json.loads(line)
            if what == "silent":
                silent.append(shop)
                continue
            assert (shop, until) not in windows, "a window came twice"
            windows[shop, until] = cents
    wanted = expected(tmp_path)
    last = max(second for _, second in windows)
    assert windows == {key: cents for key, cents in wanted.items() if key[1] <= last}
    assert last > 3 * 3 * 3600 - 2 * _WINDOW
    assert silent == ["west"]
    table = next(text for text in shown if "|cents|" in text.replace(" ", ""))
    assert "north" in table
