"""The default of `memory_budget`, and objections to one that was asked for: settings and cgroup files are fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastchangelog.errors import InvalidArgumentError
from fastchangelog.server import memory
from fastchangelog.server.memory import Limits, cgroup_limit, default_budget, objection

MIB = 1 << 20
GIB = 1 << 30
YARN = {"spark.master": "yarn"}
K8S = {"spark.master": "k8s://https://api:6443"}


@pytest.mark.parametrize(
    ("confs", "limits", "mib", "why"),
    [
        # A cluster manager counts: half of what it gives beside the heap.
        ({**YARN, "spark.executor.memory": "20g"}, Limits(), 1024, "overhead of an executor, 2048 MiB"),
        ({**YARN, "spark.executor.memory": "1g"}, Limits(), 192, "overhead of an executor, 384 MiB"),
        ({**YARN, "spark.executor.minMemoryOverhead": "1g"}, Limits(), 512, "1024 MiB"),
        ({**YARN, "spark.executor.memoryOverhead": "3000"}, Limits(machine=GIB), 1500, "3000 MiB"),
        (
            {**YARN, "spark.executor.memory": "10g", "spark.executor.memoryOverheadFactor": "0.5"},
            Limits(),
            2560,
            "5120 MiB",
        ),
        ({**K8S, "spark.executor.memory": "10g"}, Limits(), 2048, "4096 MiB"),
        (
            {**K8S, "spark.executor.memory": "10g", "spark.kubernetes.memoryOverheadFactor": "0.2"},
            Limits(),
            1024,
            "2048 MiB",
        ),
        # No manager counts: a share of the machine.
        ({"spark.master": "local[4]"}, Limits(machine=24 * GIB), 3072, "an eighth of the machine"),
        ({"spark.master": "spark://host:7077"}, Limits(machine=8 * GIB), 1024, "an eighth of the machine"),
        ({}, Limits(), 1024, "nothing is known"),
        # A container bounds both: half of what it has beyond the heap.
        ({"spark.master": "local[4]"}, Limits(machine=64 * GIB, cgroup=3 * GIB), 1024, "the container's 3072 MiB"),
        (
            {"spark.master": "local[4]", "spark.driver.memory": "2g"},
            Limits(machine=64 * GIB, cgroup=3 * GIB),
            512,
            "container",
        ),
        (
            {**K8S, "spark.executor.memory": "10g"},
            Limits(machine=64 * GIB, cgroup=14 * GIB),
            2048,
            "overhead of an executor",
        ),
        (
            {
                "spark.master": "local[2]",
                "spark.memory.offHeap.enabled": "true",
                "spark.memory.offHeap.size": str(GIB),
            },
            Limits(cgroup=4 * GIB),
            1024,
            "container",
        ),
        # The address space of whatever a worker starts.
        ({"spark.master": "local[2]"}, Limits(64 * GIB, None, 2 * GIB), 512, "spark.executor.pyspark.memory"),
        # Never less than is of use; then the limit's own error says what to do.
        ({"spark.master": "local[2]"}, Limits(64 * GIB, GIB, None), 64, "the least there is"),
    ],
)
def test_the_default_budget_is_the_least_that_the_limits_allow(
    confs: dict[str, str], limits: Limits, mib: int, why: str
) -> None:
    found = default_budget(confs, limits)
    assert (found.bytes // MIB, found.bytes % MIB) == (mib, 0)
    assert why in found.why


@pytest.mark.parametrize(
    ("mib", "confs", "limits", "names"),
    [
        (384, YARN, Limits(), None),
        (385, YARN, Limits(), "`spark.executor.memoryOverhead` to 769 MiB"),
        (2048, {**YARN, "spark.executor.memoryOverhead": "2g"}, Limits(), None),
        (8192, {"spark.master": "local[4]"}, Limits(machine=4 * GIB), None),
        (2048, {"spark.master": "local[4]"}, Limits(cgroup=3 * GIB), None),
        (2049, {"spark.master": "local[4]"}, Limits(cgroup=3 * GIB), "`spark.driver.memory`"),
        (2049, {**K8S, "spark.executor.memoryOverhead": "4g"}, Limits(cgroup=3 * GIB), "`spark.executor.memory`"),
    ],
)
def test_a_budget_that_does_not_fit_names_the_setting_to_change(
    mib: int, confs: dict[str, str], limits: Limits, names: str | None
) -> None:
    found = objection(mib * MIB, confs, limits)
    assert found is None if names is None else found is not None and names in found and "`memory_budget`" in found


@pytest.mark.parametrize("text", ["", "lots", "1.5g", "-1", "1gg"])
def test_sizes_are_read_as_spark_reads_them(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="512m or 2g"):
        memory.java_bytes(text)


def test_the_least_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    groups = tmp_path / "sys/fs/cgroup"
    for folder, limit in (("", "1000000"), ("pod", "3000"), ("pod/box", "max"), ("pod/other", "5")):
        (groups / folder).mkdir(parents=True, exist_ok=True)
        (groups / folder / "memory.max").write_text(limit + "\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/box\n")
    assert cgroup_limit(tmp_path) == 3000
    (tmp_path / "proc/self/cgroup").write_text("0::/of/the/host\n")
    assert cgroup_limit(tmp_path) == 1000000, "inside a container the mount is the group"
    (groups / "memory.max").write_text("max\n")
    assert cgroup_limit(tmp_path) is None


def test_version_1_of_control_groups_is_read_too(tmp_path: Path) -> None:
    box = tmp_path / "sys/fs/cgroup/memory/docker/box"
    box.mkdir(parents=True)
    (box / "memory.limit_in_bytes").write_text("536870912\n")
    (box.parent.parent / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,cpuacct:/\n4:memory:/docker/box\nnonsense\n")
    assert cgroup_limit(tmp_path) == 512 * MIB
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/\n")
    assert cgroup_limit(tmp_path) is None
    assert cgroup_limit(tmp_path / "no system at all") is None


def test_a_server_is_started_with_the_budget_and_the_reason() -> None:
    confs = {"spark.master": "local[2]"}
    options, remark = memory.with_budget({"compression": "lz4"}, confs, Limits(machine=8 * GIB))
    assert options == {"compression": "lz4", "memory_budget": str(GIB)}
    assert "an eighth of the machine" in remark
    options, remark = memory.with_budget({"memory_budget": "2GiB"}, confs, Limits(cgroup=2 * GIB))
    assert options == {"memory_budget": str(2 * GIB)}
    assert "give the container more memory" in remark
    with pytest.raises(InvalidArgumentError, match="exceeds the container's memory, 1024 MiB"):
        memory.with_budget({"memory_budget": "2GiB"}, confs, Limits(cgroup=GIB))
    with pytest.raises(InvalidArgumentError, match=r"unset or raise `spark\.executor\.pyspark\.memory`"):
        memory.with_budget({}, confs, Limits(machine=8 * GIB, address_space=GIB))
