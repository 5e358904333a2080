"""The states that a handle's schema text describes.

Owns: reading the catalog of a stateful processor or of an embedded state, as far as readers need it.
Does not own: which catalog follows another (`spark.processor.evolution`, the core), types (`schema`, and in Spark
`spark.types.ddl`).

A processor's state that was deleted keeps its entry, marked, and one that was declared anew in another way has another
name in the catalog: what counts for a reader is the name that the processor gave it.
"""

from __future__ import annotations

import dataclasses
import json

__all__ = ["TIMERS", "AccumulatorLayout", "CatalogState", "is_processor", "state_rows", "states_of"]

TIMERS = "$timers"
"""The name of a processor's timers among its states; a user's name cannot begin with a dollar sign."""


EMBEDDED_ENCODING = 2
"""The encoding of an embedded state's values that have versions; in a processor's catalog they have 1."""


@dataclasses.dataclass(frozen=True)
class AccumulatorLayout:
    """The stored accumulators of a processor's aggregating state."""

    #: The core's description: functions with the types of their arguments, in the order of the stored bytes.
    schema: str
    #: For each result, the aggregate of that description.
    identities: tuple[str, ...]
    #: Results alone determine the accumulators.
    can_rebuild: bool = False


@dataclasses.dataclass(frozen=True)
class CatalogState:
    """One state. Types are texts."""

    id: int
    #: As the processor or the program declared it.
    name: str
    #: As the core names it, such as `value` or `timers`.
    kind: str
    key: str
    #: Of a map.
    map_key: str | None
    #: Of timers, the time mode.
    value: str
    #: All types that values were ever written in, `value` among them; none: they have one type for ever.
    versions: tuple[str, ...]
    #: Written entries expire after some time.
    ttl: bool
    #: Of a processor's aggregates; `value` is the type of their results.
    accumulators: AccumulatorLayout | None = None


def is_processor(schema: str) -> bool:
    """True for the schema text of a stateful processor: not for aggregates, not for an embedded state.

    An embedded state has another encoding of its values than a processor, or no versions of types.
    """
    described = json.loads(schema)
    return isinstance(described, list) and all(
        entry.get("encoding") != EMBEDDED_ENCODING
        and ("versions" in entry or (entry["kind"] == "timers" and "ttl" in entry))
        for entry in described
    )


def states_of(schema: str) -> list[CatalogState]:
    """The states of a catalog, in the order in which they were declared; none for the schema of aggregates.

    >>> entry = {"id": 0, "name": "n", "kind": "value", "key": "k string", "value": "n bigint", "ttl": False}
    >>> [(state.name, state.kind, state.value) for state in states_of(json.dumps([entry]))]
    [('n', 'value', 'n bigint')]
    """
    described = json.loads(schema)
    if not isinstance(described, list):
        return []
    return [
        CatalogState(
            entry["id"],
            entry.get("variable", entry["name"]),
            entry["kind"],
            entry["key"],
            entry.get("map_key"),
            entry["value"],
            tuple(entry.get("versions", ())),
            entry.get("ttl", False),
            AccumulatorLayout(entry["accumulators"], tuple(entry["results"])) if "accumulators" in entry else None,
        )
        for entry in described
        if not entry.get("deleted")
    ]


def state_rows(schema: str) -> list[dict[str, object]]:
    """The states for people and machines that read them, with their types as texts."""
    return [
        {
            "name": state.name,
            "kind": state.kind,
            "key": state.key,
            **({} if state.map_key is None else {"map_key": state.map_key}),
            **({"time_mode": state.value} if state.kind == "timers" else {"value": state.value}),
            **({"ttl": state.ttl} if state.ttl or is_processor(schema) else {}),
            **({"versions": list(state.versions)} if len(state.versions) > 1 else {}),
        }
        for state in states_of(schema)
    ]
