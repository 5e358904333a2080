"""The memory budget of a state server, derived from the settings of its executor.

Owns: the default of the option `memory_budget`, the check of a given one, the limits of the system.
Does not own: division and enforcement of the budget (the Rust core), the source of Spark's settings (`spark`).

A cluster manager that counts an executor's memory (YARN, Kubernetes) counts the state server with it: the server's
memory is part of `spark.executor.memoryOverhead`, like that of Python workers. So by default it takes half of it.
Without such a manager it takes a share of the machine. A container's limit bounds both, and so does
`spark.executor.pyspark.memory`, which limits the address space of all processes that a worker starts.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.options import parse_size

__all__ = ["CONFS", "Budget", "Limits", "default_budget", "needed_address_space", "objection", "with_budget"]

MIN_BUDGET = 64 << 20
"""The smallest default: below it, the caches are of little use."""

OVERHEAD_SHARE = 2
"""A server takes this part of an executor's overhead (1/n); Python workers and the JVM's own need the rest."""

MACHINE_SHARE = 8
"""A server takes this part of a machine's memory (1/n) where no cluster manager counts."""

CONTAINER_SHARE = 2
"""A server takes this part (1/n) of what a container has beyond the JVM's heap."""

ADDRESS_SPACE = 1 << 30
"""Address space of a server beside twice its budget: libraries, stacks, allocator arenas, mapped files."""

CONFS = (
    "spark.master",
    "spark.driver.memory",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.memoryOverheadFactor",
    "spark.executor.minMemoryOverhead",
    "spark.kubernetes.memoryOverheadFactor",
    "spark.memory.offHeap.enabled",
    "spark.memory.offHeap.size",
)
"""Spark's public settings of an executor's memory."""

_UNITS = {"": 1 << 20, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


@dataclass(frozen=True)
class Limits:
    """Limits of the system, in bytes; None where there is no limit or it is unknown."""

    machine: int | None = None
    cgroup: int | None = None
    """Of the container of this process, shared with its other processes."""
    address_space: int | None = None

    @classmethod
    def here(cls) -> Limits:
        """The limits of this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(machine or None, cgroup_limit(Path("/")), None if soft == resource.RLIM_INFINITY else soft)


@dataclass(frozen=True)
class Budget:
    """A budget and its reason."""

    bytes: int
    why: str


def java_bytes(text: str) -> int:
    """A size in the form of Spark's memory settings; a plain number counts MiB.

    >>> [java_bytes(text) >> 20 for text in ("2g", "512m", "384", "1024kb")]
    [2048, 512, 384, 1]
    """
    found = re.fullmatch(r"(\d+)\s*([bkmgtp]?)b?", text.strip().lower())
    if found is None:
        raise InvalidArgumentError(f"{text!r} is not a size of memory as Spark reads it, such as 512m or 2g")
    return int(found[1]) * _UNITS[found[2]]


def _heap(confs: Mapping[str, str]) -> int:
    """Bytes that the JVM beside the server may come to hold on its heap, and off it by Spark's own account."""
    name = "spark.driver.memory" if _is_local(confs) else "spark.executor.memory"
    off = confs.get("spark.memory.offHeap.enabled", "false").lower() == "true"
    # Off the heap, a bare number counts bytes.
    size = confs.get("spark.memory.offHeap.size", "0")
    return java_bytes(confs.get(name, "1g")) + (java_bytes(size + "b" if size.isdigit() else size) if off else 0)


def _is_local(confs: Mapping[str, str]) -> bool:
    # local-cluster starts executors as a cluster does, but no manager counts their memory.
    return confs.get("spark.master", "local").startswith("local[") or confs.get("spark.master", "local") == "local"


def overhead(confs: Mapping[str, str]) -> int | None:
    """Bytes that an executor has beside its heap, where a cluster manager counts them; else None.

    >>> overhead({"spark.master": "yarn", "spark.executor.memory": "8g"}) >> 20
    819
    >>> overhead({"spark.master": "k8s://https://host", "spark.executor.memory": "10g"}) >> 20
    4096
    >>> overhead({"spark.master": "yarn", "spark.executor.memoryOverhead": "2g"}) >> 20
    2048
    """
    master = confs.get("spark.master", "")
    if not master.startswith(("yarn", "k8s://")):
        return None
    given = confs.get("spark.executor.memoryOverhead")
    if given is not None:
        return java_bytes(given)
    factor = confs.get("spark.executor.memoryOverheadFactor")
    if factor is None and master.startswith("k8s://"):
        # Kubernetes gives jobs of Python more than those of the JVM alone.
        factor = confs.get("spark.kubernetes.memoryOverheadFactor", "0.4")
    least = java_bytes(confs.get("spark.executor.minMemoryOverhead", "384m"))
    return max(int(java_bytes(confs.get("spark.executor.memory", "1g")) * float(factor or "0.1")), least)


def default_budget(confs: Mapping[str, str], limits: Limits) -> Budget:
    """The budget of a server without the option `memory_budget`: the least that the limits allow, but at least
    `MIN_BUDGET`.

    >>> default_budget({"spark.master": "yarn", "spark.executor.memoryOverhead": "4g"}, Limits(machine=64 << 30))
    Budget(bytes=2147483648, why='half of the memory overhead of an executor, 4096 MiB')
    """
    beside = overhead(confs)
    found: list[Budget] = []
    if beside is not None:
        found.append(Budget(beside // OVERHEAD_SHARE, f"half of the memory overhead of an executor, {_mib(beside)}"))
    elif limits.machine is not None:
        why = f"an eighth of the machine's memory, {_mib(limits.machine)}"
        found.append(Budget(limits.machine // MACHINE_SHARE, why))
    if limits.cgroup is not None:
        available = max(limits.cgroup - _heap(confs), 0)
        why = f"half of what the container's {_mib(limits.cgroup)} leave beside the heap"
        found.append(Budget(available // CONTAINER_SHARE, why))
    if limits.address_space is not None:
        why = f"what spark.executor.pyspark.memory allows, {_mib(limits.address_space)} of addresses"
        found.append(Budget((limits.address_space - ADDRESS_SPACE) // 2, why))
    least = min(found, key=lambda budget: budget.bytes, default=Budget(1 << 30, "nothing is known of this machine"))
    if least.bytes < MIN_BUDGET:
        return Budget(MIN_BUDGET, f"the least there is; {least.why} would give less")
    return Budget(least.bytes >> 20 << 20, least.why)


def objection(budget: int, confs: Mapping[str, str], limits: Limits) -> str | None:
    """Why a given budget does not fit, and the setting to change; None if it fits.

    >>> objection(1 << 30, {"spark.master": "yarn"}, Limits())
    'option `memory_budget` = 1024 MiB does not fit into the memory overhead of an executor, 384 MiB, in which the \
cluster manager counts it: raise `spark.executor.memoryOverhead` to 1408 MiB or more, or lower `memory_budget`'
    """
    beside = overhead(confs)
    if beside is not None and budget > beside:
        return (
            f"option `memory_budget` = {_mib(budget)} does not fit into the memory overhead of an executor, "
            f"{_mib(beside)}, in which the cluster manager counts it: raise `spark.executor.memoryOverhead` to "
            f"{_mib(budget + beside)} or more, or lower `memory_budget`"
        )
    if limits.cgroup is not None and budget > limits.cgroup - _heap(confs):
        return (
            f"option `memory_budget` = {_mib(budget)} and the JVM's heap of {_mib(_heap(confs))} do not fit into the "
            f"{_mib(limits.cgroup)} of this container, which counts both: give the container more memory, or lower "
            f"`memory_budget` or {'`spark.driver.memory`' if _is_local(confs) else '`spark.executor.memory`'}"
        )
    return None


def check_container(budget: int, limits: Limits) -> None:
    """Refuses a budget that alone is more than the container has: the kernel would kill the server, or the JVM."""
    if limits.cgroup is not None and budget > limits.cgroup:
        raise InvalidArgumentError(
            f"option `memory_budget` = {_mib(budget)} exceeds the container's memory, {_mib(limits.cgroup)}; lower "
            "or omit `memory_budget`, or give the container more memory"
        )


def needed_address_space(budget: int) -> int:
    """Address space that a server with this budget needs."""
    return 2 * budget + ADDRESS_SPACE


def asked_budget(options: Mapping[str, str]) -> int | None:
    """The budget of the option `memory_budget`; None without it."""
    text = options.get("memory_budget")
    return None if text is None else parse_size("memory_budget", text)


def with_budget(options: Mapping[str, str], confs: Mapping[str, str], limits: Limits) -> tuple[dict[str, str], str]:
    """The options with a memory budget, and the reason for it, which goes to the server's log."""
    budget = asked_budget(options)
    if budget is None:
        default = default_budget(confs, limits)
        budget, remark = default.bytes, default.why
    else:
        check_container(budget, limits)
        remark = objection(budget, confs, limits) or "as the option says"
    _check_address_space(budget, limits.address_space)
    return {**options, "memory_budget": str(budget)}, remark


def _check_address_space(budget: int, limit: int | None) -> None:
    """A server inherits its starter's limit on address space; one that cannot fit is refused with the reason."""
    needed = needed_address_space(budget)
    if limit is not None and limit < needed:
        raise InvalidArgumentError(
            f"`spark.executor.pyspark.memory` limits the state server's address space to {limit >> 20} MiB, but a "
            f"`memory_budget` of {budget >> 20} MiB needs {needed >> 20} MiB; unset or raise "
            "`spark.executor.pyspark.memory`, or lower `memory_budget`"
        )


def cgroup_limit(root: Path) -> int | None:
    """The lowest memory limit of this process's control groups; `root` is `/` except in tests."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container the path may be the host's, which does not exist there: then the mount itself is the group.
        here = base / path.strip("/")
        for folder in (here, *here.parents):
            if folder == base or base in folder.parents:
                found += _limit_in(folder / name)
    return min(found, default=None)


def _limit_in(file: Path) -> list[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    # Version 1 expresses "no limit" by a number larger than any memory.
    return [int(text)] if text.isdigit() and int(text) < 1 << 60 else []


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
