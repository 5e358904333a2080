"""`import_state(checkpoint)`: the state of an existing Spark query, for a query of this package to begin with.

Owns: the public description of what is imported.
Does not own: reading the checkpoint (`checkpoint.spark_states`), what an aggregation or a processor makes of it
(`aggregates.seed`, `processor.imported`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastchangelog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fastchangelog.types import PathLike

__all__ = ["ImportedState", "import_state"]


@dataclasses.dataclass(frozen=True)
class ImportedState:
    """The state of an existing Spark query. Made by `import_state`.

    Example:
        >>> import_state("/checkpoints/bids", operator=0).checkpoint
        '/checkpoints/bids'
    """

    checkpoint: str
    """The query's `checkpointLocation`."""
    operator: int | None = None
    """The number of the stateful operator; None = the only one."""
    batch: int | None = None
    """The batch after which the state is read; None = the last committed one."""
    variables: tuple[str, ...] | None = None
    """The state variables of a processor; None = all."""


def import_state(
    checkpoint: PathLike,
    operator: int | None = None,
    *,
    batch: int | None = None,
    variables: Sequence[str] | None = None,
) -> ImportedState:
    """The state of an existing Spark query, so that moving it over loses nothing.

    Stop the query, and start the new one with a new checkpoint: `grouped(…).agg(…, initial_state=import_state(…))` for
    an aggregation with the same aggregates in the same order, `grouped(…).transformWithState(…,
    initialState=import_state(…))` for the same processor. Its values, lists, maps, TTLs and timers go on as they are;
    `handleInitialState` is not called. What the sources have delivered is not a part of it: `fastchangelog migrate`
    shows where each source is to go on.

    The state is read when the new query runs its first batch; its schema whenever the query is built. So keep the old
    checkpoint until the argument is out of the program, which it may be once the first batch has committed.

    Args:
        checkpoint: The `checkpointLocation` of a query of Spark's own `groupBy(…)`.
        operator: The number of its stateful operator, from 0; by default the only one.
        batch: The batch after which the state is read; by default the last committed one.
        variables: The state variables of a processor to import; by default all.

    Returns:
        What `agg` and `transformWithState` take as the initial state.

    Raises:
        InvalidArgumentError: An argument cannot be what it says.

    Example:
        >>> old = import_state("/checkpoints/bids", operator=0)
        >>> grouped(bids, "auction", state=folder).agg(F.count("*"), initial_state=old)  # doctest: +SKIP
    """
    for what, value in (("operator", operator), ("batch", batch)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise InvalidArgumentError(f"import_state() takes {what} as a number from 0 on, not {value!r}")
    if isinstance(variables, str):
        raise InvalidArgumentError("variables of import_state() is a list of names, not one text")
    names = None if variables is None else tuple(variables)
    return ImportedState(os.fspath(checkpoint), operator, batch, names)
