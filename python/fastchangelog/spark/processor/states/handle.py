"""The handle that `init` is given: `StatefulProcessorHandle` of PySpark.

Owns: its methods: declaring states, checks of names, schemas and TTLs as Spark makes them, and timers.
Does not own: the states (`value`, `list`, `map`, `timers`), their catalog (`evolution`).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from typing import Any, Literal

from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from fastchangelog.catalog import AccumulatorLayout
from fastchangelog.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from fastchangelog.spark.processor.spark_errors import CREATED, PRE_INIT, spark_error, time_mode_name
from fastchangelog.spark.processor.spec import QueryInfo, TimeMode
from fastchangelog.spark.processor.states.cache import CachedState, Scope
from fastchangelog.spark.processor.states.list import ProcessorListState
from fastchangelog.spark.processor.states.map import ProcessorMapState
from fastchangelog.spark.processor.states.timers import TimerCache
from fastchangelog.spark.processor.states.value import ProcessorValueState
from fastchangelog.spark.types import wire
from fastchangelog.spark.types.ddl import parse_ddl
from fastchangelog.spark.types.state_type import StateType
from fastchangelog.spark.types.walk import contains

__all__ = ["Declaration", "ProcessorHandle"]

#: The kinds that PySpark has.
Kind = Literal["value", "list", "map"]

#: In milliseconds. Times at which values end have 64 bits.
_LONGEST_TTL = 2**62


@dataclasses.dataclass(frozen=True)
class Declaration:
    """A state that `init` asked for."""

    name: str
    #: As catalogs name it.
    kind: str
    value: T.StructType
    #: Of a map.
    map_key: T.StructType | None = None
    #: None = values never expire.
    ttl_millis: int | None = None
    #: Of aggregates; `value` is the type of their results.
    accumulators: AccumulatorLayout | None = None


class ProcessorHandle(StatefulProcessorHandle):
    """PySpark's `StatefulProcessorHandle`; `getQueryInfo` is that of Spark's Scala handle.

    The states it gives are bound to a session after `init`: `declared` and `deleted` say what it asked for.
    """

    def __init__(self, scope: Scope, mode: TimeMode, query_info: QueryInfo) -> None:
        self._scope = scope
        self._mode = mode
        self._query_info = query_info
        self._timers = TimerCache(scope, mode)
        self.declared: dict[str, tuple[Declaration, CachedState]] = {}
        #: Names that `deleteIfExists` was called for, before or without a declaration of the same name.
        self.deleted: set[str] = set()

    @property
    def timers(self) -> TimerCache:
        """The timers of the keys in work."""
        return self._timers

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorValueState:
        """A single value for each key; within `init` only."""
        self._check_declaration("get_value_state", "value", stateName)
        value = self._schema("value", stateName, schema)
        declaration = Declaration(stateName, "value", value, None, self._ttl("value", stateName, ttlDurationMs))
        state = ProcessorValueState(stateName, self._scope, StateType(value, f"state `{stateName}`"))
        self.declared[stateName] = declaration, state
        return state

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorListState:
        """A list for each key; within `init` only."""
        self._check_declaration("get_list_state", "list", stateName)
        value = self._schema("list", stateName, schema)
        declaration = Declaration(stateName, "list", value, None, self._ttl("list", stateName, ttlDurationMs))
        state = ProcessorListState(stateName, self._scope, StateType(value, f"state `{stateName}`"))
        self.declared[stateName] = declaration, state
        return state

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> ProcessorMapState:
        """A map for each key; within `init` only."""
        self._check_declaration("get_map_state", "map", stateName)
        key = self._schema("map", stateName, userKeySchema)
        value = self._schema("map", stateName, valueSchema)
        if wire.is_collated(key):
            raise spark_error(
                "initializing map state", "STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY", schema=key.json()
            )
        if contains(key, lambda part: isinstance(part, T.MapType)):
            raise UnsupportedError(f"state `{stateName}`: a map cannot be a part of the keys of a map")
        declaration = Declaration(stateName, "map", value, key, self._ttl("map", stateName, ttlDurationMs))
        types = StateType(key, f"the key of state `{stateName}`"), StateType(value, f"state `{stateName}`")
        state = ProcessorMapState(stateName, self._scope, *types)
        self.declared[stateName] = declaration, state
        return state

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Registers a timer of the key in work."""
        self._timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Deletes a timer of the key in work."""
        self._timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Times of the timers of the key in work, in the order of Spark's store."""
        return self._timers.listed()

    def deleteIfExists(self, stateName: str) -> None:
        """Deletes a state and all that is in it; within `init` only."""
        self._check_phase("delete_if_exists", "deleting state")
        self._check_name("deleting state", "remove_col_family", stateName)
        self.declared.pop(stateName, None)
        self.deleted.add(stateName)

    def getQueryInfo(self) -> QueryInfo:
        """The ids of the query, of its run and of the batch."""
        return self._query_info

    def _check_phase(self, operation: str, doing: str) -> None:
        if self._scope.phase not in (PRE_INIT, CREATED):
            raise spark_error(
                doing,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
                "call it in init",
                operation=operation,
                state=self._scope.phase,
            )

    def _check_declaration(self, operation: str, kind: Kind, name: str) -> None:
        doing = f"initializing {kind} state"
        self._check_phase(operation, doing)
        self._check_name(doing, "create_col_family", name)
        if name in self.declared:
            raise spark_error(doing, "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED", name=name)

    @staticmethod
    def _check_name(doing: str, operation: str, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"the name of a state is a str, not {name!r}")
        if not name or name != name.strip() or name == "default":
            condition = "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"
            raise spark_error(doing, condition, operation=operation, name=name)
        if name.startswith("$"):
            raise spark_error(doing, "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS", name=name)

    def _schema(self, kind: Kind, name: str, schema: Any) -> T.StructType:
        if isinstance(schema, T.StructType):
            return T.StructType(list(schema.fields))  # a later `add` to the user's is for another state
        if isinstance(schema, str):
            return parse_ddl(schema)
        raise ArgumentTypeError(
            f"{kind} state `{name}`: {schema!r} is no schema; give a StructType, or columns such as 'n long'"
        )

    def _ttl(self, kind: Kind, name: str, millis: int | None) -> int | None:
        if millis is None:
            return None
        try:
            number = operator.index(millis)
        except TypeError:
            number = None
        if number is None or isinstance(millis, bool):
            raise ArgumentTypeError(f"{kind} state `{name}`: {millis!r} is no TTL; give milliseconds as an int")
        if number == 0:
            return None  # as in Spark: no TTL
        doing = f"initializing {kind} state"
        if self._mode != "processingtime":
            mode = time_mode_name(self._mode)
            raise spark_error(doing, "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL", name=name, mode=mode)
        if number < 0:
            raise spark_error(doing, "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE", name=name)
        if number > _LONGEST_TTL:
            raise InvalidArgumentError(
                f"{kind} state `{name}`: a TTL of {number} ms is too long; without one, values never expire"
            )
        return number
