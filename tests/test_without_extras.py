"""States of programs need neither PySpark nor pandas nor protobuf, and their commands do not either.

Owns: commands in a process that has none of them. Does not own: what the commands say (`test_cli`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j", "pandas", "grpc") or name.startswith("google.protobuf"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
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
print("sweep of a query", cli.main(["sweep", root, "--checkpoint", root]), flush=True)
"""


def test_commands_of_embedded_states_need_no_pyspark(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _PROGRAM, str(tmp_path / "state"), str(tmp_path / "savepoint")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    codes = [line for line in done.stdout.splitlines() if line.rsplit(" ", 1)[0] in _COMMANDS and line[-1].isdigit()]
    assert codes == [*(f"{command} 0" for command in _COMMANDS[:-1]), "sweep of a query 2"], done.stdout + done.stderr
    assert "fastchangelog[spark]" in done.stderr, "what it is that reads a query's checkpoint"


_COMMANDS = ["sweep", "sweep", "inspect", "inspect", "verify", "sweep of a query"]
