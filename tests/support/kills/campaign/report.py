"""What a campaign has done and found, as numbers, as a table, and as JSON.

Owns: the counts, the story of a finding on disk. Does not own: what is counted when (`round`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

#: Kinds of findings, and what each means.
KINDS = {
    "wrong": "an answer, or an entry of a savepoint, that is not the model's",
    "lost": "an object that a handle names is not there, or the job cannot go on",
    "leaked": "a process, folder, socket, file or object that nothing needs and nothing removes",
    "stuck": "no answer although there is input, or no end",
    "ended": "the job ended by itself",
    "crashed": "a process ended without being killed, or reported a fault of its own",
}
#: Roles whose process is a JVM.
JVMS = ("executor", "driver", "everything")
ANYTIME = "any moment"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that must not be."""

    kind: str
    what: str
    round: int
    step: str
    folder: str


@dataclasses.dataclass
class Tally:
    """The counts of a campaign."""

    #: By role and failpoint: how often a kill hit at least one process.
    kills: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    #: By role: processes that were killed.
    processes: Counter[str] = dataclasses.field(default_factory=Counter)
    #: By failpoint and action: requests that met it.
    faults: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    #: Points that no process reached in time.
    unreached: Counter[str] = dataclasses.field(default_factory=Counter)
    #: Everything else: batches, answers, sweeps, savepoints, …
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def total(self) -> int:
        """All kills."""
        return sum(self.kills.values())

    @property
    def jvms(self) -> int:
        """Kills of JVMs."""
        return sum(n for (role, _), n in self.kills.items() if role in JVMS)

    def to_dict(self, **more: Any) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            **more,
            "kills": [{"role": r, "at": p, "kills": n} for (r, p), n in sorted(self.kills.items())],
            "processes": dict(sorted(self.processes.items())),
            "faults": [{"at": p, "action": a, "requests": n} for (p, a), n in sorted(self.faults.items())],
            "unreached": dict(sorted(self.unreached.items())),
            "counts": dict(sorted(self.counts.items())),
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }

    def lines(self) -> list[str]:
        """Everything, for people."""
        roles = sorted({role for role, _ in self.kills})
        points = sorted({point for _, point in self.kills}, key=lambda p: (p == ANYTIME, p))
        rows = [["kill -9 at", *roles, "all"]]
        for point in points:
            counts = [self.kills[role, point] for role in roles]
            rows.append([point, *(str(n or "") for n in counts), str(sum(counts))])
        sums = [sum(n for (r, _), n in self.kills.items() if r == role) for role in roles]
        rows.append(["all", *map(str, sums), str(self.total)])
        rows.append(["processes", *(str(self.processes[role]) for role in roles), str(sum(self.processes.values()))])
        out = _table(rows)
        faults = [["fault", "action", "requests"]]
        faults += [[point, action, str(n)] for (point, action), n in sorted(self.faults.items())]
        out += ["", *_table(faults)] if self.faults else []
        if self.unreached:
            out += ["", "not reached in time: " + ", ".join(f"{p} {n}" for p, n in sorted(self.unreached.items()))]
        out += ["", ", ".join(f"{what}: {n}" for what, n in sorted(self.counts.items()))]
        found = Counter(finding.kind for finding in self.findings)
        out += ["", *_table([["found", "", ""], *([kind, str(found[kind]), means] for kind, means in KINDS.items())])]
        for finding in self.findings:
            out += [f"{finding.kind}: round {finding.round}, {finding.step}: {finding.what}", f"  {finding.folder}"]
        return out


def write_story(folder: Path, finding: Finding, decisions: list[str], tail: str, rerun: str) -> None:
    """Puts what is known of a finding into the round's folder, which is kept."""
    text = [f"{finding.kind}: {finding.what}", f"in round {finding.round}, {finding.step}", "", f"again: {rerun}", ""]
    text += ["decisions so far:", *decisions, "", "logs:", tail, ""]
    with (folder / "story.txt").open("a") as file:
        file.write("\n".join(text) + "\n")


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numbers = range(1, len(rows[0]))

    def cell(row: list[str], i: int) -> str:
        return row[i].rjust(widths[i]) if i in numbers and row[i].isdigit() else row[i].ljust(widths[i])

    return ["  ".join(cell(row, i) for i in range(len(row))).rstrip() for row in rows]
