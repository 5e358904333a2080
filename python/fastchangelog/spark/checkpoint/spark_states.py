"""Spark's own state: what a checkpoint of Spark's operators holds after its last batch.

Owns: operators, their variables, who reads them, and the source offsets.
Does not own: reading files (`checkpoints.core`, `files`), rows (`stored_rows`), checkpoints of this package
(`checkpoints.handles`), what becomes of the rows (`aggregates.seed`, `processor.imported`).

The core reads the state where it can. Else Spark's source does, and the log says why.

At `load()`, the sources `state-metadata` and `statestore` take a checkpoint's format from the session's settings, not
from the checkpoint. Format 2 writes ids of state stores into its commits, so the commit tells the format.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import types as T

from fastchangelog.checkpoints.core import ColumnFamily, CoreFiles
from fastchangelog.checkpoints.files import StatefulOperator, plain_location
from fastchangelog.errors import InvalidArgumentError, SchemaMismatchError, StateNotFoundError, StoreError
from fastchangelog.hidden import Hidden
from fastchangelog.spark import internals, settings, versions
from fastchangelog.spark.checkpoint.files import SparkFiles, query_checkpoints, unreadable
from fastchangelog.spark.checkpoint.stored_rows import CoreRows, CoreState, StoredRows
from fastchangelog.spark.types.walk import contains

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fastchangelog.spark.grouping import Grouping
    from fastchangelog.spark.imported_state import ImportedState

_log = logging.getLogger("fastchangelog.spark")

__all__ = ["DISTINCT_WITHIN_WATERMARK", "TIME_MODES", "Checkpoint", "Operator", "Variable", "check_keys"]

Kind = Literal["aggregate", "distinct", "processor", "other"]

#: Spark's names of time modes in a checkpoint, and ours.
TIME_MODES = {"NoTime": "none", "ProcessingTime": "processingtime", "EventTime": "eventtime"}
_KINDS = {"ValueState": "value", "ListState": "list", "MapState": "map"}
#: The name of the variable that this package keeps in a checkpoint.
_OURS = "handle"
#: The columns of a variable beside the key, as Spark's source names them.
_COLUMNS = {"value": "value", "list": "list_value", "map": "user_map_value"}
#: The families with timers by key, for each time mode.
_TIMERS = {"processingtime": "$procTimers_keyToTimestamp", "eventtime": "$eventTimers_keyToTimestamp"}
#: Spark's operators that keep the keys of distinct rows.
DISTINCT, DISTINCT_WITHIN_WATERMARK = "dedupe", "dedupeWithinWatermark"
#: The names of aggregations begin with these.
_SAVE, _SESSION_SAVE = "stateStoreSave", "sessionWindowStateStoreSave"
#: The call that takes the state of an operator, by its kind.
_TAKEN_BY = {
    "aggregate": "is an aggregation: give its state to agg(…, initial_state=import_state(…))",
    "distinct": "keeps distinct rows: give its state to drop_duplicates(…, initial_state=import_state(…))",
    "processor": "is a processor: give its state to transformWithState(…, initialState=import_state(…))",
}
#: The only family of a store without families, in its schema.
_ONLY = "default"


@dataclasses.dataclass(frozen=True)
class Variable:
    """A state variable of a processor."""

    name: str
    kind: str
    has_ttl: bool


@dataclasses.dataclass(frozen=True)
class Operator:
    """A stateful operator of a query."""

    number: int
    #: Spark's name.
    name: str
    kind: Kind
    time_mode: str = "none"
    output_mode: str = ""
    variables: tuple[Variable, ...] = ()
    partitions: int = 0

    @property
    def is_ours(self) -> bool:
        """True if its variables are those of this package's operators; a user's may have that name too."""
        return [variable.name for variable in self.variables] == [_OURS]

    @property
    def has_session_windows(self) -> bool:
        """True for an aggregation by session windows."""
        return self.name.startswith(_SESSION_SAVE)

    @property
    def has_timers(self) -> bool:
        """True if it may have registered timers."""
        return self.kind == "processor" and self.time_mode != "none"


class Checkpoint:
    """The checkpoint of a query of Spark's own, after its last batch or a given one."""

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        batch: int | None = None,
        *,
        root: str = "",
        storage_options: Hidden[Mapping[str, str]] | None = None,
    ) -> None:
        """`storage_options` are those of the state's `root`; they serve a checkpoint in a store of the same kind."""
        self.spark = spark
        self.location = plain_location(location)
        checkpoints = query_checkpoints(
            spark, root, storage_options, by_spark=lambda location: SparkFiles(spark, plain_location(location))
        )
        self._files = checkpoints.files(self.location)
        committed = self._files.log("commits")
        if not committed:
            raise StateNotFoundError(
                f"{self.location} has no committed batch: give the checkpointLocation of a Spark query that has run"
            )
        self.batch = max(committed) if batch is None else batch
        if self.batch not in committed:
            raise InvalidArgumentError(
                f"{self.location} has no committed batch {self.batch}; Spark keeps the batches {min(committed)} to "
                f"{max(committed)}"
            )
        commit = self._json_lines(f"commits/{self.batch}")[0]
        self._format = "2" if commit.get("stateUniqueIds") else "1"
        self._files = checkpoints.files_after(self.location, self.batch)
        #: Of operators, by number: their families, as the core reads them.
        self._families: dict[int, dict[str, ColumnFamily]] = {}
        self._by_spark: SparkFiles | None = None
        if not isinstance(self._files, CoreFiles):
            self._leave_to_spark(checkpoints.why_spark(self.location))

    @classmethod
    def of_import(cls, grouping: Grouping, imported: ImportedState) -> Checkpoint:
        """The checkpoint whose state a query begins with."""
        storage = settings.resolve(grouping.storage_options)
        spark = grouping.df.sparkSession
        return cls(spark, imported.checkpoint, imported.batch, root=grouping.root, storage_options=storage)

    def _leave_to_spark(self, why: str) -> SparkFiles:
        """Spark's source, which the log tells of once."""
        if self._by_spark is None:
            _log.warning("Spark's source reads the state of %s, slower than the core would: %s", self.location, why)
            self._check_version(self.spark.version)
            self._by_spark = SparkFiles(self.spark, self.location)
        return self._by_spark

    def _check_version(self, version: str) -> None:
        """Refuses what this version of Spark cannot read."""
        what = f"Spark {version} cannot read the state of {self.location}, whose checkpoint format is {self._format}"
        if self._format == "2" and not versions.READS_OWN_CHECKPOINTS(version):
            raise InvalidArgumentError(
                f"{what}: its source fails on that format. Spark {versions.READS_OWN_CHECKPOINTS} or newer reads it, "
                f"but for the states of a transformWithState that Spark {versions.SUPPORTED} has written"
            )
        first = versions.READS_FORMAT_1_OVER_CONNECT
        if self._format == "1" and internals.is_connect(self.spark) and not first(version):
            raise InvalidArgumentError(f"{what}, over Spark Connect; use a classic session, or Spark {first} or newer")

    def _lines(self, name: str) -> list[str]:
        lines = self._files.lines(name)
        if lines is None:
            raise StateNotFoundError(f"{self.location}/{name} is missing; copy the whole checkpoint")
        return lines

    def _json_lines(self, name: str) -> list[dict[str, Any]]:
        try:
            found = [json.loads(line) for line in self._lines(name)[1:2]]
            return [dict(line) for line in found] or [{}]
        except (ValueError, TypeError):
            raise StoreError(
                f"Spark did not write {self.location}/{name}; give the checkpointLocation of a query"
            ) from None

    def source_offsets(self) -> list[str]:
        """Where the sources of the query are after the batch, as Spark writes it, one text for each source."""
        return self._lines(f"offsets/{self.batch}")[2:]

    def watermark_millis(self) -> int:
        """The watermark of the batch; 0 without one."""
        return int(self._json_lines(f"offsets/{self.batch}")[0].get("batchWatermarkMs", 0))

    def operators(self) -> list[Operator]:
        """The stateful operators, by number."""
        if self._by_spark is None:
            rows = self._files.operators(self.batch)
        else:
            with self._settings():
                rows = self._by_spark.all_operators()
        found: dict[int, Operator] = {}
        for row in rows:  # a join has several stores, and Spark gives a row for each
            found.setdefault(row.number, _operator(row))
        return [found[number] for number in sorted(found)]

    def operator(self, number: int | None) -> Operator:
        """The operator of a number, or the only one that can be imported."""
        there = self.operators()
        if any(self.holds_handles(operator) for operator in there):
            raise InvalidArgumentError(
                f"{self.location} is a checkpoint of fastchangelog; restart its query from it, or start another "
                "query from a savepoint of it, grouped(…, start_from=…)"
            )
        listed = ", ".join(f"{operator.number} ({operator.name})" for operator in there) or "none"
        if number is None:
            candidates = [operator for operator in there if operator.kind != "other"]
            if len(candidates) != 1:
                raise InvalidArgumentError(
                    f"{self.location} has the stateful operators {listed}; say which one: "
                    "import_state(checkpoint, operator=…)"
                )
            return candidates[0]
        chosen = next((operator for operator in there if operator.number == number), None)
        if chosen is None:
            raise InvalidArgumentError(f"{self.location} has no operator {number}; it has {listed}")
        if chosen.kind == "other":
            raise InvalidArgumentError(
                f"operator {number} of {self.location} is {chosen.name}; groupBy().agg(), dropDuplicates, "
                "dropDuplicatesWithinWatermark and transformWithState can be imported"
            )
        return chosen

    def operator_of_kind(self, number: int | None, kind: Kind) -> tuple[Operator, str]:
        """As `operator`, of this kind alone; also its place, as errors name it."""
        found = self.operator(number)
        where = f"{self.location}, operator {found.number}"
        if found.kind != kind:
            raise InvalidArgumentError(f"{where} {_TAKEN_BY[found.kind]}")
        return found, where

    def holds_handles(self, operator: Operator) -> bool:
        """True for an operator of this package."""
        if not operator.is_ours:
            return False
        fields: Any = self.variable(operator, operator.variables[0]).others["value"]
        return bool(fields.names[:1] == [_OURS])

    def rows(self, operator: Operator) -> StoredRows:
        """The state of an aggregation or of distinct rows: structs `key` and `value`."""
        family = self._family(operator, _ONLY)
        if family is None:
            found = StoredRows.of_frame(self._load(operator.number))
        else:
            key, value = family
            found = StoredRows(key, {"value": value}, self._core_rows(operator, _ONLY, key, value))
        return found.by_values() if operator.has_session_windows else found

    def variable(self, operator: Operator, variable: Variable) -> StoredRows:
        """The state of a variable, as the source gives it: maps by entry, lists as arrays."""
        family = self._family(operator, variable.name)
        if family is None:
            options = {"stateVarName": variable.name, "flattenCollectionTypes": str(variable.kind == "map").lower()}
            return StoredRows.of_frame(self._load(operator.number, **options))
        stored, value = family
        key: Any = stored
        others: dict[str, T.DataType] = {}
        if variable.kind == "map":
            key, others["user_map_key"] = stored.fields[0].dataType, stored.fields[1].dataType
        others[_COLUMNS[variable.kind]] = T.ArrayType(value) if variable.kind == "list" else value
        is_list = variable.kind == "list"
        return StoredRows(key, others, self._core_rows(operator, variable.name, stored, value, is_list=is_list))

    def timers(self, operator: Operator) -> StoredRows:
        """Registered timers: `key` and `expiration_timestamp_ms`."""
        family = self._family(operator, _TIMERS[operator.time_mode])
        if family is None:
            return StoredRows.of_frame(self._load(operator.number, readRegisteredTimers="true"))
        stored, value = family
        key: Any = stored.fields[0].dataType
        rows = self._core_rows(operator, _TIMERS[operator.time_mode], stored, value)
        return StoredRows(key, {"expiration_timestamp_ms": stored.fields[1].dataType}, rows)

    def _family(self, operator: Operator, name: str) -> tuple[T.StructType, T.StructType] | None:
        """The types of a family's key and value; None where Spark's source reads them."""
        if self._by_spark is not None or not isinstance(self._files, CoreFiles):
            return None
        if operator.number not in self._families:
            self._families[operator.number] = self._files.families(operator.number, self.batch)
        families = self._families[operator.number]
        if name not in families:
            raise StoreError(f"{self.location}, operator {operator.number}, has no schema of `{name}` in _stateSchema")
        try:
            key, value = (
                T.StructType.fromJson(json.loads(text)) for text in (families[name].key, families[name].value)
            )
        except Exception as error:  # a type of a newer Spark
            self._leave_to_spark(f"the types of `{name}` are not known here: {error}")
            return None
        if contains(key, lambda part: isinstance(part, T.MapType)):
            self._leave_to_spark(f"the keys of `{name}` have maps, whose entries Spark must sort")
            return None
        return key, value

    def _core_rows(
        self, operator: Operator, name: str, key: T.StructType, value: T.StructType, *, is_list: bool = False
    ) -> CoreRows:
        assert isinstance(self._files, CoreFiles)
        state = CoreState(self._files, operator.number, self.batch, operator.partitions)
        encoder = self._families[operator.number][name].key_encoder
        if operator.has_session_windows and not encoder:  # searched by all but the start
            spec = {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": len(key) - 1}
            encoder = json.dumps(spec)
        return CoreRows(state, name if operator.kind == "processor" else None, encoder, key, value, is_list)

    def _load(self, operator: int, **options: str) -> DataFrame:
        assert self._by_spark is not None
        with self._settings():
            try:
                return self._by_spark.state(operator, self.batch, **options)
            except Exception as error:
                raise unreadable(f"{self.location}, operator {operator}", error) from None

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        conf, before = self.spark.conf, self.spark.conf.get(settings.FORMAT_VERSION, None)
        conf.set(settings.FORMAT_VERSION, self._format)
        try:
            yield
        finally:
            if before is None:
                conf.unset(settings.FORMAT_VERSION)
            else:
                conf.set(settings.FORMAT_VERSION, before)


def _operator(row: StatefulOperator) -> Operator:
    number, name = row.number, row.name
    if name.startswith((_SAVE, _SESSION_SAVE)):
        return Operator(number, name, "aggregate", partitions=row.partitions)
    if name in (DISTINCT, DISTINCT_WITHIN_WATERMARK):
        return Operator(number, name, "distinct", partitions=row.partitions)
    if not name.startswith("transformWithState"):
        return Operator(number, name, "other", partitions=row.partitions)
    properties = json.loads(row.properties or "{}")
    listed = properties.get("stateVariables", [])
    variables = tuple(
        Variable(v["stateName"], _KINDS[v["stateVariableType"]], bool(v.get("ttlEnabled")))
        for v in listed
        if v["stateVariableType"] in _KINDS and not v["stateName"].startswith("$")
    )
    return Operator(
        number,
        name,
        "processor",
        TIME_MODES.get(properties.get("timeMode", ""), "none"),
        properties.get("outputMode", ""),
        tuple(sorted(variables, key=lambda variable: variable.name)),
        row.partitions,
    )


def check_keys(where: str, keys: Sequence[T.StructField], found: T.StructType) -> None:
    """Refuses state by other keys than those that a query groups by."""
    wanted = [field.dataType.simpleString() for field in keys]
    there = [field.dataType.simpleString() for field in found.fields]
    if wanted != there:
        wrong = next((i for i, (a, b) in enumerate(zip(wanted, there)) if a != b), min(len(wanted), len(there)))
        named = found.fields[wrong] if wrong < len(found) else None
        detail = "" if named is None else f"; the key `{named.name}` is {named.dataType.simpleString()} there"
        raise SchemaMismatchError(
            f"{where} has state by ({', '.join(there)}), but the query groups by ({', '.join(wanted)}){detail}: group "
            "by keys of the same types, in the same order"
        )
