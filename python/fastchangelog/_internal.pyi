"""The compiled part of fastchangelog. Not public: names here may change with any version.

Every call lets go of the GIL while it works or waits, hears Ctrl-C during waits, and raises the classes of
`fastchangelog.errors` with a message of one line. Objects belong to the process that made them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Literal, Protocol, final

import pyarrow as pa
from typing_extensions import Self, disjoint_base

__all__ = [
    "DEVIATIONS",
    "PROTOCOL_VERSION",
    "Accumulators",
    "AggregatingState",
    "ChangeBatches",
    "ChangelogHandle",
    "ChangelogReader",
    "ChangelogStorage",
    "ChangelogWriter",
    "ListState",
    "LocalState",
    "MapState",
    "ObjectFolder",
    "ResultBatches",
    "RowChunk",
    "RowChunks",
    "RowGrouper",
    "RowSplitter",
    "SavepointEntries",
    "SavepointFolder",
    "Server",
    "ServerClient",
    "SessionClient",
    "SparkCheckpoint",
    "Splitter",
    "StateCodec",
    "StateHandle",
    "StateMaterialization",
    "StateRows",
    "StateScan",
    "StateSession",
    "StoredState",
    "TextVariable",
    "TimerState",
    "ValueState",
    "__version__",
    "aggregate_functions",
    "aggregate_results",
    "build_info",
    "clean_uri",
    "default_max_parallelism",
    "failpoint",
    "folder_note_json",
    "handle_json",
    "head_json",
    "is_secret_option",
    "manifest_json",
    "object_type",
    "metrics_table",
    "options_table",
    "overlay_storage_options",
    "parse_duration",
    "parse_options",
    "parse_size",
    "process_metrics",
    "schema_difference",
    "segment_index_json",
    "spark_collected",
    "spec_buffers",
    "spec_check",
    "spec_schema",
    "start_note",
    "start_note_json",
    "uri_schemes",
]

__version__: str
"""The package's version."""

DEVIATIONS: tuple[float, float]
"""The least and the greatest relative deviation of `approx_count_distinct` for which the core has registers."""

PROTOCOL_VERSION: int
"""Version of the protocol between workers and the state server."""

class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

class _ArrowSchema(Protocol):
    def __arrow_c_schema__(self) -> object: ...

class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class ChangelogStorage:
    """A folder in an object store for the logs of any number of writers."""

    def __new__(
        cls,
        uri: str,
        options: Mapping[str, str],
        storage_options: Mapping[str, str],
        cache_dir: str | None,
        provider: Callable[[], tuple[dict[str, str], float | None]] | None = None,
    ) -> ChangelogStorage:
        """`provider` gives credentials under their names as storage options, and when they end (seconds since the
        epoch). It is called on a thread of its own, once at a time, and again before that end."""
    @property
    def uri(self) -> str:
        """The folder, without credentials."""
    @property
    def tracked_objects(self) -> int:
        """Log objects whose change sets are counted."""
    def metrics(self) -> dict[str, int]:
        """Every counter by name."""
    def sweep(self, needed: list[ChangelogHandle], grace_seconds: float, dry_run: bool) -> tuple[list[str], int, int]:
        """Deletes (or only lists) what is not needed: names, bytes, and the number of objects kept."""
    def close(self) -> None:
        """Ends all writers. Twice is fine."""

@disjoint_base
class ChangelogWriter:
    """One writer of a storage."""

    def __new__(cls, storage: ChangelogStorage, name: str, start: int, end: int) -> Self: ...
    def append(self, key_group: int, value: bytes) -> None:
        """Appends a change of a key group to the active change set.

        Raises `InvalidArgumentError` for a key group of another writer, `ClosedError` after close, and what a failed
        upload said if the change waited for room in ``max_in_flight``.
        """
    def append_meta(self, value: bytes) -> None:
        """Appends a metadata record: readers get it before the changes of its change set, with key group -1."""
    def _append_arrow(self, groups: _ArrowArray, values: _ArrowArray, held: int) -> None: ...
    @property
    def name(self) -> str:
        """The writer's name."""
    @property
    def _key_groups(self) -> tuple[int, int]: ...
    @property
    def initial_sequence_number(self) -> int:
        """The number of the first change set: 0."""
    @property
    def next_sequence_number(self) -> int:
        """One past the number of the newest change. Asking changes nothing; `rollover` starts a new change set."""
    @property
    def last_appended_sequence_number(self) -> int | None:
        """The number of the newest change; None before the first."""
    @property
    def closed(self) -> bool:
        """True after close."""
    def rollover(self) -> int:
        """Ends the active change set, unless it is empty, and returns the number that the next change will have."""
    def _persist(
        self,
        from_sqn: int,
        checkpoint_id: int,
        settle: Callable[[ChangelogHandle | None, BaseException | None], None],
    ) -> None: ...
    def confirm(self, from_sqn: int, to_sqn: int, checkpoint_id: int) -> None:
        """Says that a checkpoint with the range ``[from_sqn, to_sqn)`` completed. Confirmations may come in any order;
        the range's objects stay until `subsume`."""
    def reset(self, from_sqn: int, to_sqn: int, checkpoint_id: int) -> None:
        """Says that a checkpoint was aborted: its change sets stay for the next one."""
    def subsume(self, checkpoint_id: int) -> None:
        """Says that no checkpoint up to and with this one is retained: truncated change sets that only they named are
        deleted."""
    def truncate(self, to_sqn: int) -> None:
        """Says that change sets below ``to_sqn`` are not needed any more. Those that an open or confirmed checkpoint
        names stay until it is reset or subsumed. Never moves back."""
    def truncate_and_close(self, from_sqn: int) -> None:
        """Closes, and gives up the change sets at or above ``from_sqn`` that no checkpoint names."""
    def close(self) -> None:
        """Closes: what was not persisted is lost, pending persists end with `ClosedError`. Twice is fine."""

@final
class ChangelogHandle:
    """A durable range of a writer's changes."""

    @staticmethod
    def from_bytes(data: bytes) -> ChangelogHandle:
        """The handle of `to_bytes`."""
    def to_bytes(self) -> bytes:
        """The handle's binary form."""
    def to_json(self) -> str:
        """The handle's readable form."""
    def moved_to(self, uri: str) -> ChangelogHandle:
        """The same handle in another folder."""
    @property
    def storage(self) -> str:
        """The storage's folder."""
    @property
    def writer(self) -> str:
        """The writer's name."""
    @property
    def key_groups(self) -> tuple[int, int]:
        """First key group, and one past the last."""
    @property
    def from_sequence_number(self) -> int:
        """First sequence number."""
    @property
    def to_sequence_number(self) -> int:
        """One past the last sequence number."""
    @property
    def checkpoint_id(self) -> int:
        """The checkpoint."""
    @property
    def size(self) -> int:
        """Bytes of all values."""
    @property
    def incremental_size(self) -> int:
        """Bytes of the values that no earlier checkpoint named."""
    @property
    def change_count(self) -> int:
        """Number of changes."""

@final
class ChangelogReader:
    """Reads handles."""

    def __new__(cls, storage: ChangelogStorage, cache_dir: str | None) -> ChangelogReader: ...
    def batches(self, handle: ChangelogHandle, key_groups: tuple[int, int] | None) -> ChangeBatches:
        """The changes of a handle, or of a part of its key groups."""
    def close(self) -> None:
        """Ends the reader."""

@final
class ChangeBatches:
    """Record batches of changes, fetched ahead. It belongs to one thread at a time."""

    def __iter__(self) -> ChangeBatches: ...
    def __next__(self) -> pa.RecordBatch: ...

@final
class LocalState:
    """An embedded state."""

    def __new__(
        cls,
        uri: str,
        name: str,
        options: Mapping[str, str],
        storage_options: Mapping[str, str],
        handle: StateHandle | None,
        read_only: bool,
        create: bool,
        provider: Callable[[], tuple[dict[str, str], float | None]] | None = None,
        savepoint: SavepointFolder | None = None,
        clock: Callable[[], int] | None = None,
    ) -> LocalState:
        """`provider` is asked for credentials as that of a `ChangelogStorage`; a new state begins with `savepoint`;
        `clock` gives milliseconds since the epoch."""
    @property
    def uri(self) -> str:
        """The state's folder, without credentials."""
    @property
    def read_only(self) -> bool:
        """True if nothing can be changed."""
    @property
    def closed(self) -> bool:
        """True after close."""
    def count_sweep(self, deleted: int, deleted_bytes: int, waiting: int, requests: int, in_doubt: bool) -> None:
        """Adds a sweep to the metrics."""
    def metrics(self) -> dict[str, int]:
        """Every counter by name."""
    def newest(self) -> StateHandle | None:
        """The newest checkpoint that this object knows."""
    def savepoint(self, handle: StateHandle, to: SavepointFolder, format: str, scratch: str) -> None:
        """Writes a checkpoint as a savepoint."""
    def checkpoint(self) -> StateHandle:
        """Makes durable what was changed."""
    def begin_checkpoint(self, settle: Callable[[StateHandle | None, BaseException | None], None]) -> None:
        """Freezes what was changed; `settle` is called when it is durable, or not."""
    def progress(self) -> tuple[int, int, int]:
        """Since the newest snapshot: bytes of log, change sets; and bytes of the state."""
    def begin_materialize(self) -> StateMaterialization | None:
        """Begins a materialization; none if there is nothing to do."""
    def on_event(self, call: Callable[[], None]) -> None:
        """`call` is called some time after each checkpoint, and after a refused change. Once per state."""
    def refuse_changes(self, why: str | None) -> None:
        """Refuses changes with a `StoreError`, or allows them again."""
    def close(self) -> None:
        """Discards what no checkpoint holds. Twice is fine."""

@final
class StateMaterialization:
    """A materialization of an embedded state."""

    def start(self, settle: Callable[[None, BaseException | None], None]) -> None:
        """Starts the long part on a thread; `settle` is called when it is over."""
    def complete(self) -> None:
        """Offers the new snapshot to the next checkpoint."""
    def abort(self, reason: str) -> None:
        """Discards it. Does not block."""

@final
class ValueState:
    """Values by key."""

    def __new__(cls, state: LocalState, name: str, schema: _ArrowSchema, ttl_millis: int | None = None) -> ValueState:
        """`schema` has the fields of keys and values."""
    def get(self, keys: _ArrowArray) -> pa.Array:
        """The values; null where there is none."""
    def contains(self, keys: _ArrowArray) -> pa.BooleanArray:
        """Which keys have a value."""
    def put(self, keys: _ArrowArray, values: _ArrowArray) -> None:
        """Sets values; a null deletes."""
    def delete(self, keys: _ArrowArray) -> None:
        """Removes keys."""
    def scan(
        self, start: _ArrowArray | None, end: _ArrowArray | None, prefix: _ArrowArray | None, batch_size: int
    ) -> StateScan:
        """Keys and values in order; each bound is an array of one key, or of its leading fields."""

@final
class MapState:
    """Maps by key."""

    def __new__(cls, state: LocalState, name: str, schema: _ArrowSchema, ttl_millis: int | None = None) -> MapState:
        """`schema` has the fields of keys, map keys and values."""
    def get(self, keys: _ArrowArray, map_keys: _ArrowArray) -> pa.Array:
        """The values; null where there is none. Of one key any number of map keys may be given, here and below."""
    def contains(self, keys: _ArrowArray, map_keys: _ArrowArray) -> pa.BooleanArray:
        """Which entries exist."""
    def put(self, keys: _ArrowArray, map_keys: _ArrowArray, values: _ArrowArray) -> None:
        """Sets entries; a null deletes."""
    def delete(self, keys: _ArrowArray, map_keys: _ArrowArray) -> None:
        """Removes entries."""
    def clear(self, keys: _ArrowArray) -> None:
        """Removes all entries of keys."""
    def lengths(self, keys: _ArrowArray) -> pa.Int64Array:
        """How many entries keys have."""
    def scan(
        self,
        key: _ArrowArray | None,
        start: _ArrowArray | None,
        end: _ArrowArray | None,
        prefix: _ArrowArray | None,
        batch_size: int,
    ) -> StateScan:
        """Entries in order; with `key` its entries, and the bounds are of map keys."""

@final
class ListState:
    """Lists by key."""

    def __new__(cls, state: LocalState, name: str, schema: _ArrowSchema, ttl_millis: int | None = None) -> ListState:
        """`schema` has the fields of keys and elements."""
    def get(self, keys: _ArrowArray) -> pa.ListArray:
        """The lists; null where there is none."""
    def lengths(self, keys: _ArrowArray) -> pa.Int64Array:
        """How many elements they have."""
    def append(self, keys: _ArrowArray, values: _ArrowArray) -> None:
        """Adds one element to each list."""
    def extend(self, keys: _ArrowArray, lists: _ArrowArray) -> None:
        """Adds a list to each list."""
    def put(self, keys: _ArrowArray, lists: _ArrowArray) -> None:
        """Replaces lists; a null or empty one removes."""
    def clear(self, keys: _ArrowArray) -> None:
        """Removes lists."""
    def scan(
        self, start: _ArrowArray | None, end: _ArrowArray | None, prefix: _ArrowArray | None, batch_size: int
    ) -> StateScan:
        """Keys and lists in order."""

@final
class AggregatingState:
    """Aggregates by key."""

    def __new__(
        cls,
        state: LocalState,
        name: str,
        schema: _ArrowSchema,
        calls: str,
        ansi: bool,
        ttl_millis: int | None = None,
    ) -> AggregatingState:
        """`schema` has the fields of keys and rows; `calls` is a JSON array, one object for each aggregate."""
    def result_schema(self) -> pa.Schema:
        """One field, of the type of results."""
    def get(self, keys: _ArrowArray) -> pa.Array:
        """The results; null where nothing was added."""
    def contains(self, keys: _ArrowArray) -> pa.BooleanArray:
        """To which keys something was added."""
    def add(self, keys: _ArrowArray, rows: _ArrowArray | None) -> None:
        """Adds rows, one for each key."""
    def clear(self, keys: _ArrowArray) -> None:
        """Forgets keys."""
    def scan(
        self, start: _ArrowArray | None, end: _ArrowArray | None, prefix: _ArrowArray | None, batch_size: int
    ) -> StateScan:
        """Keys and results in order."""

@final
class TimerState:
    """Times by key, in microseconds since the epoch."""

    def __new__(cls, state: LocalState, name: str, schema: _ArrowSchema) -> TimerState:
        """`schema` has the field of keys."""
    def register(self, keys: _ArrowArray, times: _ArrowArray) -> None:
        """Registers a timer for each key and time."""
    def delete(self, keys: _ArrowArray, times: _ArrowArray) -> None:
        """Removes the timer of each key and time."""
    def of(self, keys: _ArrowArray) -> pa.ListArray:
        """The times of each key."""
    def next_time(self) -> int | None:
        """The first time of all."""
    def due(self, until: int, batch_size: int) -> StateScan:
        """Times and keys of what is due; a batch is removed when the next one is asked for."""
    def scan(self, start: int | None, end: int | None, batch_size: int) -> StateScan:
        """Times and keys, in order."""

@final
class StateScan:
    """Record batches of a scan. It belongs to one thread at a time."""

    def __iter__(self) -> StateScan: ...
    def __next__(self) -> pa.RecordBatch: ...

@final
class StateHandle:
    """A checkpoint of an embedded state."""

    @staticmethod
    def from_bytes(data: bytes) -> StateHandle:
        """The handle of `to_bytes`."""
    def to_bytes(self) -> bytes:
        """The handle's binary form."""
    def to_json(self) -> str:
        """The handle's readable form."""
    @property
    def version(self) -> str:
        """The version's random id, in hex."""
    @property
    def checkpoint_number(self) -> int:
        """Its number among the checkpoints that it came from."""
    @property
    def state_keys(self) -> int:
        """Keys in all states."""
    @property
    def state_bytes(self) -> int:
        """Bytes of keys and values."""

@final
class SessionClient:
    """A session at the state server: `merge` any number of payloads, `finish`, read the results, `commit`.

    Closing it before `commit` has returned aborts it: nothing of it is kept. It belongs to one thread at a time.
    """

    def __new__(cls, socket_path: str, request_json: str, *, log: str = "") -> SessionClient:
        """Connects, compares versions, opens the session that `request_json` describes. `log` is for messages."""

    def merge(self, payload: bytes) -> None:
        """Sends one payload (an Arrow IPC stream). An error that it causes may be raised by a later call."""

    def finish(self, persist: bool = True) -> ResultBatches:
        """Ends the payloads. With `persist`, the server makes the new version durable while results are read."""

    def commit(self) -> tuple[str, dict[str, int], int | None]:
        """Waits until the new version is durable: its handle, and what the session did. Unread results are skipped.

        Of an aggregation by event time also a time in microseconds: no group of the version is before it.
        """

    def close(self) -> None:
        """Ends the session; an abort unless it was committed. May be called again."""

    def __enter__(self) -> SessionClient: ...
    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class ResultBatches:
    """The results of a session, in order; reading them to the end is part of the session.

    Strings are binaries: Spark's need not be UTF-8.
    """

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch, known even when there is none."""

    def __iter__(self) -> ResultBatches: ...
    def __next__(self) -> pa.RecordBatch: ...

@final
class StateSession:
    """A session of a stateful processor: `declare`, any reads and writes, `commit`.

    States are named by their numbers in the catalog; keys, map keys (`sub`) and values are bytes of a `StateCodec`. The
    time of a timer is a `sub` of 8 bytes, big endian. Closing the session before `commit` has returned aborts it:
    nothing of it is kept. It belongs to one thread at a time.
    """

    def __new__(cls, socket_path: str, request_json: str, *, log: str = "") -> StateSession:
        """A session at the state server. As `SessionClient`; the request's `operator` is `processor`."""

    @staticmethod
    def in_memory(after: StateSession | None = None) -> StateSession:
        """A session without a server, for tests of processors.

        It starts from a copy of the entries of `after`, a session in memory that has committed, or from nothing. Its
        handle is empty.
        """

    @property
    def catalog(self) -> str:
        """The stored catalog, JSON."""

    @property
    def watermark(self) -> int | None:
        """The watermark of the version that the session starts from; None without one."""

    def declare(self, catalog: str, now_millis: int) -> None:
        """Declares the states, once, before all else, and the time by which entries have ended."""

    def get(self, state: int, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Values of each of the first keys; null where there is none.

        They are of all keys, unless they are large: then as many as have 64 MiB, of one key at least. The next call has
        the keys behind.
        """

    def read_entries(
        self, state: int, keys: pa.BinaryArray, max_bytes_per_key: int
    ) -> tuple[pa.ListArray, pa.BooleanArray]:
        """The first entries of each key, structs of `sub` (null in lists) and `value`; True where there are more.

        `read_page` has the rest. Its `after` is the last `sub` of a map, the number of elements of a list as 8 bytes,
        big endian, or None for a key without entries here.
        """

    def read_page(
        self, state: int, key: bytes, after: bytes | None, max_bytes: int
    ) -> tuple[pa.StructArray, bytes | None]:
        """Entries of one key, and where the next page begins; None at the end."""

    def get_entries(self, state: int, keys: pa.BinaryArray, subs: pa.BinaryArray) -> pa.BinaryArray:
        """Values of entries of maps; null where there is none. One key may stand for all `subs`.

        They are of the first entries, as those of `get`.
        """

    def write(
        self,
        state: int,
        ops: pa.UInt8Array,
        keys: pa.BinaryArray,
        subs: pa.BinaryArray | None,
        values: pa.BinaryArray | None,
        expires_at: int | None = None,
    ) -> None:
        """Changes in their order: 0 clears, 1 puts, 2 deletes, 3 appends. Does not wait for the server.

        An error that they cause is raised by a later call, by `commit` at the latest.
        """

    def clear_all(self, state: int) -> None:
        """Removes all entries of a state. Does not wait for the server, as `write`."""

    def due_timers(
        self, until: int, after: tuple[int, bytes] | None, limit: int
    ) -> tuple[pa.Int64Array, pa.BinaryArray, bool]:
        """Timers up to the time `until`, in the order of time and key, after the given one: times and keys.

        True = there are more. A page has fewer than `limit` timers if their keys are long.
        """

    def timers_of(self, keys: pa.BinaryArray) -> pa.ListArray:
        """Times of the timers of each of the first keys, ascending; of one key at least."""

    def next_timer(self) -> int | None:
        """The earliest timer's time."""

    def scan(self, state: int, after: bytes | None, max_bytes: int) -> tuple[pa.RecordBatch, bytes | None]:
        """A page of all entries of a state, columns `key`, `sub`, `value`, and where the next page begins.

        `sub` is the time of a timer, or that at which what has a TTL ends, as 8 bytes, big endian; else null. A page
        may be empty although another follows. The key of a map's entry is that of the state, then the map key.
        """

    def commit(self, watermark: int | None = None) -> tuple[str, dict[str, int]]:
        """Waits until the new version is durable: its handle, and what the session did."""

    def close(self) -> None:
        """Ends the session; an abort unless it was committed. May be called again."""

    def __enter__(self) -> StateSession: ...
    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class StateCodec:
    """Keys and values of a state, between Arrow and bytes.

    Values are written in the type `value`, and read in any they were ever written in: `versions`, of which `value` is
    one. A `SchemaMismatchError` names the fields of a type that cannot become `value`. Strings may be any bytes;
    decoded ones are not checked to be UTF-8.
    """

    def __new__(
        cls, key: pa.DataType | pa.Schema, value: pa.DataType | pa.Schema, versions: Sequence[pa.DataType] = ...
    ) -> StateCodec:
        """A schema stands for the struct of its fields."""

    def encode_keys(self, keys: pa.Array | pa.RecordBatch) -> pa.BinaryArray:
        """Canonical bytes: equal for equal keys, in the order of the keys."""

    def decode_keys(self, keys: pa.BinaryArray) -> pa.Array:
        """The keys of some bytes."""

    def encode_values(self, values: pa.Array) -> pa.BinaryArray:
        """Bytes that begin with the version of the type; null for null."""

    def decode_values(self, values: pa.BinaryArray) -> pa.Array:
        """The values of some bytes, converted to the type that values are written in."""

@final
class Accumulators:
    """The accumulators of aggregates over the columns of rows; they come and go as bytes, one value for each group.

    ``rows`` are all columns; ``calls`` is the JSON list that `calls_of` writes. With ``ansi``, an overflow is an error.
    Texts may be any bytes; those of results are not checked to be UTF-8.
    """

    def __new__(cls, rows: _ArrowSchema, calls: str, ansi: bool) -> Accumulators: ...
    @property
    def columns(self) -> list[int]:
        """The numbers of the columns that aggregates take, ascending: those that `aggregate` and `fold` are given."""

    @property
    def identities(self) -> list[str]:
        """The readable names of the aggregates, in the order of the results."""

    @property
    def schema(self) -> str:
        """The description of the bytes; see `schema_difference`."""

    @property
    def can_rebuild(self) -> bool:
        """True if results alone determine the accumulators."""

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of results, named after the calls."""

    def aggregate(self, count: int, groups: pa.UInt32Array, rows: pa.StructArray) -> pa.StructArray:
        """The results of ``count`` groups; ``groups`` has the number of each row's group."""

    def fold(self, stored: pa.BinaryArray, groups: pa.UInt32Array, rows: pa.StructArray) -> pa.BinaryArray:
        """The accumulators of ``stored``, null for those without rows, with rows added."""

    def results(self, stored: pa.BinaryArray) -> pa.StructArray:
        """The results of accumulators; null for null."""

    def rebuild(self, results: pa.StructArray) -> pa.BinaryArray:
        """The accumulators that have these results; needs `can_rebuild`."""

@final
class ServerClient:
    """A connection to the state server that is not a session."""

    def __new__(cls, socket_path: str, *, log: str = "", timeout_seconds: float = 30.0) -> ServerClient:
        """Connects and compares versions."""

    def ping(self) -> None:
        """Returns when the server answers."""

    def metrics(self) -> str:
        """All metrics by name, as a JSON object."""

    def shards(self) -> str:
        """The live shards, as a JSON array."""

    def renew(self, renewal_json: str) -> None:
        """Hands newer credentials of a state to the server: an object with `root`, `query_id`, `name`,
        `storage_options` and `credentials_expire_at` as in the open request."""

    def set_failpoints(self, text: str) -> None:
        """For tests: sets failpoints from `name=action[@n];…`; an empty text removes all."""

    def shutdown(self) -> None:
        """For tests: asks the server to end."""

@final
class Server:
    """The engine and its listening socket, inside the state server's process."""

    def __new__(cls, config_json: str) -> Server:
        """Starts what the settings describe."""

    def shards(self) -> str:
        """The live shards, as a JSON array; `policy` holds the materialization options of a shard's query."""

    def swept_states(self) -> list[tuple[str, str, str, dict[str, str], dict[str, str]]]:
        """Root, query, name, options and storage options (with credentials) of the states whose shard 0 is here."""

    def count_sweep(self, deleted: int, deleted_bytes: int, waiting: int, requests: int, in_doubt: bool) -> None:
        """Adds a sweep to the metrics; `waiting` is the sum over all states that are swept here."""

    def maintain(self) -> None:
        """From now on a thread materializes shards by the policies of their queries and closes idle ones."""

    def materialize(self, shard_id: str, completes: bool) -> bool:
        """For tests: makes a snapshot now, and offers it if the run `completes`; false if there is nothing to do."""

    def metrics(self) -> dict[str, int]:
        """All metrics by name."""

    def connections(self) -> int:
        """Connections that are open now."""

    def idle_seconds(self) -> float:
        """Seconds since the last client disconnected; 0 while one is connected."""

    def shutdown_requested(self) -> bool:
        """True once a client asked the server to end."""

    def log(self, level: str, event: str, fields: Mapping[str, str]) -> None:
        """Writes one line to the log."""

    def stop(self, patience_seconds: float) -> bool:
        """Ends all connections, then the engine; True when every thread ended in time. May be called again."""

@final
class Splitter:
    """The map side: rows in, payloads per shard out."""

    def __new__(
        cls, spec: str, shards: int, max_parallelism: int, payload_bytes: int, row_bytes: int | None = None
    ) -> Splitter:
        """`spec` is the JSON of an aggregate specification. Payloads of at most `row_bytes` hold in all what those of
        `payload_bytes` hold; there are more of them."""

    def push(self, batch: _ArrowArray | _ArrowStream) -> list[tuple[int, bytes]]:
        """Takes a record batch, or a stream of them; gives the payloads that are full."""

    def push_buffers(self, batch: _ArrowArray | _ArrowStream) -> list[tuple[int, bytes]]:
        """As `push`, of the columns that `spec_buffers` names."""

    def finish(self) -> list[tuple[int, bytes]]:
        """Gives what is left."""

@final
class RowSplitter:
    """The map side of a processor: rows in, payloads of whole rows per shard out."""

    def __new__(
        cls,
        keys: int,
        input: _ArrowSchema,
        shards: int,
        max_parallelism: int,
        payload_bytes: int,
        row_bytes: int | None = None,
    ) -> RowSplitter:
        """The first `keys` columns of `input` are the key. Payloads of at most `row_bytes` hold in all what those of
        `payload_bytes` hold; there are more of them."""

    def push(self, batch: _ArrowArray | _ArrowStream) -> list[tuple[int, bytes]]:
        """Takes a record batch, or a stream of them; gives the payloads that are full."""

    def finish(self) -> list[tuple[int, bytes]]:
        """Gives what is left. Shards without rows get nothing."""

@final
class RowGrouper:
    """The worker's side of a processor: payloads of a shard in, chunks of whole keys out."""

    def __new__(
        cls,
        keys: int,
        input: _ArrowSchema,
        memory_bytes: int,
        dir: str | PathLike[str],
        *,
        late: tuple[int, int] | None = None,
    ) -> RowGrouper:
        """Rows beyond `memory_bytes` are sorted in parts in a file in `dir`, which nothing else sees and which is gone
        with the process.

        :param keys: the first columns of `input` that are the key.
        :param late: the number of a column of event times, and microseconds since the epoch: rows whose time is not
            after these are dropped and counted. Rows without a time are kept.
        """

    def push(self, payload: bytes) -> None:
        """Takes a payload; one without any bytes has no rows."""

    def finish(self, chunk_rows: int, chunk_bytes: int) -> RowChunks:
        """All rows, in chunks of at most `chunk_rows` rows and about `chunk_bytes` bytes. The grouper has none left."""

    @property
    def input_rows(self) -> int:
        """Rows that came, late ones included."""

    @property
    def late_rows(self) -> int:
        """Rows that came and were late."""

    @property
    def spilled_bytes(self) -> int:
        """Bytes written to the disk."""

@final
class RowChunks:
    """An iterator over the chunks of a batch; made by `RowGrouper.finish`. It belongs to one thread at a time."""

    def __iter__(self) -> RowChunks: ...
    def __next__(self) -> RowChunk: ...

@final
class RowChunk:
    """Rows of whole keys, in the order of the keys' bytes; or a part of one key that is larger than a chunk.

    Rows of a key are in the order in which payloads brought them.
    """

    @property
    def rows(self) -> pa.RecordBatch:
        """All columns as they were declared, the key first. The bytes of a string need not be UTF-8."""

    @property
    def keys(self) -> pa.BinaryArray:
        """The canonical bytes of the distinct keys."""

    @property
    def offsets(self) -> pa.Int64Array:
        """The rows of key `i` are those from `offsets[i]` to before `offsets[i + 1]`."""

    @property
    def continues(self) -> bool:
        """The first key is the last one of the chunk before."""

    @property
    def more(self) -> bool:
        """The last key goes on in the next chunk."""

@final
class ObjectFolder:
    """A folder in an object store, as a sweep sees it."""

    def __new__(cls, uri: str, options: Mapping[str, str], storage_options: Mapping[str, str]) -> ObjectFolder:
        """Connects to `uri`; a local folder is made if need be."""
    @property
    def uri(self) -> str:
        """The folder, without credentials."""
    def child(self, folder: str) -> ObjectFolder:
        """A folder of it, as a listing shows it. Names are relative to the folder that is asked."""
    def list(self, prefix: str) -> list[tuple[str, int, float]]:
        """All objects below `prefix`: names, sizes, and when they were written, in seconds since the epoch by the
        store's clock."""
    def survey(self, prefix: str, most: int | None = None) -> tuple[Sequence[tuple[str, int, float]], dict[str, str]]:
        """What `list` gives, of a folder that others may use, too; and the names, with escapes, of what cannot be read
        or named there, each with the reason. More than `most` objects are an error."""
    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""
    def write(self, name: str, data: bytes) -> None:
        """Writes an object as a whole, also over another one."""
    def delete(self, name: str) -> None:
        """Deletes an object; one that is not there is fine."""
    def check(self) -> None:
        """Writes, reads and removes a small object; fails if the store creates it twice."""

@final
class SparkCheckpoint:
    """The checkpoint of a Spark query, read without Spark."""

    def __new__(cls, uri: str, storage_options: Mapping[str, str]) -> SparkCheckpoint:
        """Connects to `uri`; a local folder must be there."""
    @property
    def uri(self) -> str:
        """The folder, without credentials."""
    def has_files(self) -> bool:
        """True if a file is anywhere in the folder, other than those whose path has a part with `.` or `_` in front."""
    def batches(self, log: str) -> dict[int, float]:
        """The batches in `offsets` or `commits`, and when each entry was written, in seconds since the epoch."""
    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if there is none."""
    def unreadable_form(self, batch: int) -> str | None:
        """The setting that gave the state after `batch` a form that only Spark reads; None if there is none."""
    def operators(self, batch: int) -> list[tuple[int, str, str, int]]:
        """The stateful operators at a batch: Spark's number and name, the properties of a processor as JSON, and the
        number of partitions."""
    def families(self, operator: int, batch: int) -> list[tuple[str, str, str, str]]:
        """The column families of an operator's state: name, types of key and value, and the encoding of keys, the last
        three as Spark's JSON."""
    def state(self, operator: int, partition: int, batch: int, scratch: str) -> StoredState:
        """A partition of an operator's state after a batch. `scratch` is an empty local folder, which the caller
        removes."""
    def variable(self, operator: int, name: str, batch: int, scratch: str) -> TextVariable:
        """A reader of the variable `name`, whose values begin with a text. `batch` is the newest that it will read;
        `scratch` an empty local folder, which the caller removes. The files are those that `operators` listed last, if
        that was for the same batch."""

@final
class StoredState:
    """A partition of the state of one of Spark's operators."""

    def rows(
        self, family: str | None, key: pa.Schema, value: pa.Schema, key_encoder: str, *, is_list: bool = False
    ) -> StateRows:
        """The rows of a column family, or of a store without families. `key` and `value` are the columns as Spark keeps
        them: maps as maps, the type of nothing as null. `is_list`: each value is a list of rows."""
    def count(self, family: str | None) -> int:
        """The number of keys in a column family, or in a store without families."""

@final
class StateRows:
    """Batches with the structs `key` and `value` in their wire form; of lists a row for each element, with its
    `place`."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
    def __next__(self) -> pa.RecordBatch: ...

@final
class TextVariable:
    """A variable of a processor; best read for batches in ascending order."""

    def after(self, batch: int) -> list[tuple[int, str]]:
        """Partitions and texts after a batch."""
    def removed(self, batch: int) -> str | None:
        """Evidence that Spark has removed the state after `batch`; None without any."""

@final
class SavepointFolder:
    """The folder of a savepoint, or of the state that one is taken of."""

    def __new__(
        cls,
        uri: str,
        options: Mapping[str, str],
        storage_options: Mapping[str, str],
        provider: Callable[[], tuple[dict[str, str], float | None]] | None = None,
    ) -> SavepointFolder:
        """Connects to `uri`; a local folder is made if need be."""
    @property
    def uri(self) -> str:
        """The folder, without credentials."""
    def take(
        self,
        handles: Sequence[str],
        target: SavepointFolder,
        format: str,
        query_id: str,
        name: str,
        batch: int,
        scratch: str,
        report: Callable[[int, int], object] | None = None,
    ) -> str:
        """Takes a savepoint of the state in this folder and gives what it says, as `read` does.

        :param handles: the texts of the handles of all shards, of one batch.
        :param target: an empty folder.
        :param format: `canonical` or `native`.
        :param scratch: an empty local folder.
        :param report: called now and then with the bytes that are done and all bytes.
        """
    def read(self) -> str:
        """What the savepoint in this folder says, as JSON."""
    def verify(
        self, scratch: str, report: Callable[[int, int], object] | None = None
    ) -> tuple[str, list[tuple[str, str]]]:
        """Reads every byte of the savepoint in this folder: what it says, and the damaged objects."""
    def verify_objects(
        self, handles: Sequence[str], report: Callable[[int, int], object] | None = None
    ) -> tuple[int, int, list[tuple[str, str]]]:
        """Reads every byte of what handles of the state in this folder reach: objects, bytes, and what is damaged."""
    def entries(
        self,
        scratch: str,
        *,
        spec: str | None = None,
        state: int | None = None,
        types: pa.Schema | None = None,
        versions: Sequence[str] | None = None,
        layout: Literal["lasting", "ending", "timers"] = "lasting",
    ) -> SavepointEntries:
        """The entries of the savepoint in this folder: as `spec` says, or keys and values of a state, with their
        expiries; or times and keys of timers. `versions` are the types that values were written in, as texts; None:
        values have no version."""

@final
class SavepointEntries:
    """An iterator over the entries of a savepoint; made by `SavepointFolder.entries`."""

    def __iter__(self) -> SavepointEntries: ...
    def __next__(self) -> pa.RecordBatch: ...

def spec_schema(spec: str) -> tuple[int, str]:
    """The fingerprint of the rows of an aggregation, and their description."""

def schema_difference(old: str, new: str) -> str | None:
    """What keeps a query whose rows are described as `new` from the savepoint of one with `old`, in one sentence; None
    if nothing does: ANSI mode may differ, and names inside of types."""

def uri_schemes() -> list[str]:
    """The supported schemes of URIs, in lower case."""

def clean_uri(uri: str) -> str:
    """An address as a message may show it: without a user's name, a password and a query, with control characters
    escaped."""

def object_type(name: str) -> str | None:
    """What an object is by its name in a state's folder: `log`, `sst`, `base`, `index`, `head`, `probe` or `note`; None
    for a name that is not ours. `creates`: the note in a root that its store creates objects conditionally."""

def folder_note_json(name: str, data: bytes) -> str:
    """The note of a state's folder as a JSON object: `query_id`, `name`, `checkpoint`, `shards`, `max_parallelism` and,
    if there is one, `start_from`. Raises `CorruptDataError` for a damaged one."""

def start_note(checkpoint: str | None, gone: bool) -> bytes:
    """The note that a query has started from a checkpoint; `gone` takes it back."""

def start_note_json(name: str, data: bytes) -> str:
    """Such a note as a JSON object: `checkpoint`, which may be null, and `gone`. Raises `CorruptDataError` for a
    damaged one."""

def head_json(name: str, data: bytes) -> str:
    """An entry of an embedded state's checkpoint log as a JSON object: `number`, `epoch` and `handle`, which is null
    before the first checkpoint and as `handle_json` gives it after."""

def manifest_json(name: str, data: bytes) -> str:
    """A snapshot's manifest as a JSON object: `instance`, `version`, `replay_after` and the names of its `objects`."""

def segment_index_json(name: str, data: bytes) -> str:
    """The segments that an index object lists, as a JSON array of version and object."""

def is_secret_option(name: str) -> bool:
    """True for the name of a storage option whose value must not be shown."""

def spec_buffers(spec: str) -> pa.Schema:
    """The columns in which Spark keeps the keys and accumulators of an aggregate specification: the keys, then for each
    aggregate its own, named `<number of the aggregate>.<Spark's name>`."""

def spec_check(spec: str) -> None:
    """Raises `InvalidArgumentError` when an aggregate specification cannot work; also for unsupported types."""

def default_max_parallelism(shards: int) -> int:
    """Key groups of a state with `shards` shards, where the option `max_parallelism` is 0."""

def handle_json(text: str) -> str:
    """A handle, as it is kept in Spark's state, as a JSON object. Ids are 128-bit numbers."""

def metrics_table() -> list[tuple[str, str, str, str]]:
    """`(name, kind, operators, meaning)` of every metric.

    `kind` is counter, gauge, histogram, batch (only the report of a batch has it) or shard (only the text endpoint has
    it); `operators` says whose batches report it: none, all, aggregation or processor.
    """

def process_metrics() -> dict[str, int]:
    """The sum of the metrics of this process's embedded states and changelog storages, by name.

    Of a histogram, its parts: `<name>_count`, `_min`, `_p50`, `_p99` and `_max`.
    """

def aggregate_functions() -> list[tuple[str, tuple[str, ...], tuple[str, ...], str | None, bool, str, str]]:
    """Every aggregate function: name, aliases, kinds of its arguments and of any number of further ones, whether it can
    leave out nulls, result and meaning for readers."""

def aggregate_results(input: _ArrowSchema, calls: str) -> pa.Schema:
    """The results of calls over input columns: one field each, named after the call, of the type that Spark gives.

    ``calls`` is the JSON list of a specification's aggregates.
    """

def spark_collected(column: pa.Array, fields: _ArrowSchema, counted: bool) -> pa.Array:
    """The values that an aggregate of Spark's keeps in bytes: a list for each row, with counts of structs of both.

    ``fields`` are those of the rows in the bytes.
    """

def options_table() -> list[tuple[str, str, str, bool]]:
    """`(name, default, meaning, is_public)` of every option; one that is not public is for tests."""

def parse_options(options: Mapping[str, str]) -> None:
    """Checks names and values of options. Raises `InvalidArgumentError` with the nearest public name."""

def parse_duration(name: str, value: str) -> float:
    """Seconds of a duration's text; `name` is for the message."""

def parse_size(name: str, value: str) -> int:
    """Bytes of a size's text; `name` is for the message."""

def overlay_storage_options(under: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    """`over`, and of `under` what it does not contradict: keys of two sources are never mixed."""

def build_info() -> dict[str, str]:
    """How this binary was built: version, profile, protocol, target."""

def failpoint(name: str) -> None:
    """A named place where a test can hold, fail or kill this process; free unless `FASTCHANGELOG_FAILPOINTS` is set."""
