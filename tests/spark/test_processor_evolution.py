"""States whose types change at restarts, beside Spark's own evolution, which needs its Avro encoding.

Owns: entries of every older version, read under each newer one, in a query that really restarts. Does not own: which
changes are allowed, type by type (`tests/test_processor_evolution.py`), states that come and go (in
`test_processor_plan`).
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from support.spark.lacks import needs
from support.spark.processor_harness import NO_DATA_BATCHES, Job, by_value, check, sides
from support.spark.stream_harness import STORE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
by_value(__name__)

OUTPUT = "k string, said string"
DAY = 86_400_000
#: One after another: fields are added, move, become wider, are left out, and all of it inside of a struct.
VERSIONS = (
    "a int, s string",
    "b float, a bigint, s string",
    "t string, n struct<x:int,y:string>, a bigint, b float",
    "b double, n struct<z:double,x:bigint>, l array<bigint>, a bigint",
)
VALUES: tuple[tuple[Any, ...], ...] = (
    (1, "one"),
    (2.5, 2 * 10**12, None),
    ("three", (3, None), None, 3.5),
    (4.1, (4.25, 4 * 10**12), [4, 40], 4),
)

#: What else may become what, with a value: the first version writes it, the others read it.
WIDENED: list[tuple[str, str, Any]] = [
    ("int", "float", 5),
    ("int", "double", 2**31 - 1),
    ("bigint", "float", 2**53 + 1),
    ("bigint", "double", 2**53 + 1),
    ("string", "binary", "ä"),
    ("binary", "string", b"ab"),
    ("array<int>", "array<bigint>", [1, 2]),
    ("array<struct<x:int>>", "array<struct<y:string,x:bigint>>", [(1,), (None,)]),
    ("map<string,int>", "map<string,double>", {"a": 1}),
    ("map<string,struct<x:int>>", "map<string,struct<x:double,y:int>>", {"a": (1,)}),
    ("struct<p:struct<q:int>>", "struct<p:struct<r:int,q:bigint>,s:int>", ((1,),)),
]
WIDE = [", ".join(f"f{n} {types[new]}" for n, types in enumerate(WIDENED)) for new in (0, 1)]


class Changing(StatefulProcessor):
    """Answers with what is there of a key, then writes. Its states have a version's fields, with a TTL and without."""

    def __init__(self, version: int):
        self.version = version

    def init(self, handle: Any) -> None:
        fields = VERSIONS[self.version]
        self.states = [
            (
                handle.getValueState(f"value {name}", fields, ttl),
                handle.getListState(f"list {name}", fields, ttl),
                handle.getMapState(f"map {name}", "m int", fields, ttl),
            )
            for name, ttl in (("for ever", None), ("for a day", DAY))
        ]

        self.wide = handle.getMapState("wide", "m int", WIDE[min(self.version, 1)])

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        said = repr([*(self.there(*states) for states in self.states), *self.wide.values()])
        if key[0] in (str(self.version), "all"):
            new = VALUES[self.version]
            for value, a_list, a_map in self.states:
                value.update(new)
                a_list.appendValue(new)
                a_map.updateValue((self.version,), new)
        if key[0] == "0" and self.version == 0:
            self.wide.updateValue((1,), tuple(value for _, _, value in WIDENED))
        yield Row(k=key[0], said=said)

    @staticmethod
    def there(value: Any, a_list: Any, a_map: Any) -> Any:
        """Of three states."""
        return value.get(), list(a_list.get()), sorted(a_map.iterator(), key=repr)

    def close(self) -> None:
        """Nothing to end."""


@needs("nulls in lists")
def test_every_version_reads_all_older_ones(feed: Any, spark: Any, tmp_path: pathlib.Path, conf: Any) -> None:
    """Each version writes to a key of its own, and to one that all write to."""
    conf(STORE + "encodingFormat", "avro")
    conf(NO_DATA_BATCHES, "false")
    source, (ours, sparks) = feed("k string"), sides(spark, tmp_path)
    for version in range(len(VERSIONS)):
        source.add([(key,) for key in [*map(str, range(version + 1)), "all"]])
        for side in (ours, sparks):
            side.run(
                Job(lambda version=version: Changing(version), OUTPUT, time_mode="ProcessingTime"), source.stream()
            )
    check(ours.answers, sparks.answers)
    old_key = [row.said for n, rows in ours.answers.rows.items() for row in rows if n and row.k == "0"]
    assert len(old_key) == len(VERSIONS) - 1
    assert all("9007199254740992.0" in said for said in old_key)
    old = [(None, None, None, 1), (2.5, None, None, 2 * 10**12), (3.5, Row(z=None, x=3), None, None)]
    last = next(row.said for row in ours.answers.rows[len(VERSIONS) - 1] if row.k == "all")
    assert last == repr([(old[-1], old, [((version,), value) for version, value in enumerate(old)])] * 2)
