"""An embedded state with more checkpoints than its heads hold.

Owns: how it is made, and which objects its handles name. Does not own: sweeps of it (the tests).
"""

from __future__ import annotations

from pathlib import Path

import fastchangelog as fc

CHECKPOINTS = 12


def make(root: Path, name: str = "profiles") -> list[fc.StateHandle]:
    """A state with more checkpoints than its heads hold."""
    handles = []
    with fc.open_state(f"file://{root}", name=name) as st:
        table = st.value_state("t", key="string", value="long")
        for number in range(CHECKPOINTS):
            table["n"] = number
            table[f"k{number}"] = number
            handles.append(st.checkpoint())
    return handles


def named(handles: list[fc.StateHandle]) -> set[str]:
    """The log objects of handles without a base."""
    found = set()
    for handle in handles:
        shown = handle.to_dict()
        assert shown["base"] is None
        assert shown["indexed"] is None
        found |= {f"profiles/{segment['object']['name']}" for segment in shown["segments"]}
    return found
