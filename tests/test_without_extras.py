"""States of programs need neither PySpark nor pandas nor protobuf, and their commands do not either; those of queries
need them only where the core does not read the checkpoint.

Owns: commands in a process that has none of them. Does not own: what the commands say (`test_cli`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STORED = Path(__file__).parents[1] / "rust" / "spark" / "tests"

_BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j", "pandas", "grpc") or name.startswith("google.protobuf"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""

_PROGRAM = (
    _BLOCKED
    + """
import fastchangelog as fc
from fastchangelog import cli

root, savepoint = sys.argv[1:]
with fc.open_state(root) as st:
    st.value_state("t", key="string", value="long")["a"] = 1
    st.map_state("m", key="string", map_key="long", value="string")["a"][1] = "x"
    st.savepoint(savepoint)
for command in (
    ["sweep", root], ["sweep", root, "--delete"], ["inspect", root], ["inspect", savepoint],
    ["verify", savepoint],
):
    print(command[0], cli.main(command), flush=True)
print("sweep of a query", cli.main(["sweep", root, "--checkpoint", "hdfs://host/checkpoint"]), flush=True)
"""
)

_OF_A_QUERY = (
    _BLOCKED
    + """
from fastchangelog import cli

root, checkpoint, savepoint = sys.argv[1:]
at = ["--checkpoint", checkpoint]
for command in (
    ["sweep", root, *at, "--delete", "--json"], ["verify", root, *at], ["inspect", root, *at],
    ["savepoint", checkpoint, "--state", root, "--to", savepoint], ["verify", savepoint],
):
    print(command[0], cli.main(command), flush=True)
"""
)


def test_commands_of_embedded_states_need_no_pyspark(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _PROGRAM, str(tmp_path / "state"), str(tmp_path / "savepoint")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    codes = [line for line in done.stdout.splitlines() if line.rsplit(" ", 1)[0] in _COMMANDS and line[-1].isdigit()]
    assert codes == [*(f"{command} 0" for command in _COMMANDS[:-1]), "sweep of a query 2"], done.stdout + done.stderr
    assert "fastchangelog[spark]" in done.stderr, "what it is that reads a query's checkpoint"


@pytest.mark.parametrize("version", ["4.0", "4.1", "4.2", "4.3"])
def test_commands_of_queries_need_no_pyspark(version: str, tmp_path: Path) -> None:
    """A query that this version of Spark has run; all its objects are older than the grace."""
    for part in ("roots", "checkpoints"):
        shutil.copytree(STORED / part / f"processor-{version}", tmp_path / part)
    folders = [str(tmp_path / part) for part in ("roots", "checkpoints", "savepoint")]
    done = subprocess.run([sys.executable, "-c", _OF_A_QUERY, *folders], capture_output=True, text=True, timeout=120)
    codes = [line for line in done.stdout.splitlines() if line.split(" ")[0] in _OF_QUERIES and line[-1].isdigit()]
    assert [code[-1] for code in codes[1:]] == ["0"] * 4, done.stdout + done.stderr
    (folder,) = json.loads(done.stdout[: done.stdout.index("\nsweep ")])["folders"]
    assert (folder["kept_because"], folder["batches"]) == (None, [9, 11])
    assert folder["reachable"]["objects"] > 0


_OF_QUERIES = ["sweep", "verify", "inspect", "savepoint"]
_COMMANDS = ["sweep", "sweep", "inspect", "inspect", "verify", "sweep of a query"]
