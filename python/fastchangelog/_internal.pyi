"""The compiled part of fastchangelog. Not public: names here may change with any version.

Every call lets go of the GIL while it works or waits, hears Ctrl-C during waits, and raises the classes of
`fastchangelog.errors` with a message of one line. Objects belong to the process that made them.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, final

import pyarrow as pa

__all__ = [
    "PROTOCOL_VERSION",
    "MaterializeRun",
    "ResultBatches",
    "Server",
    "ServerClient",
    "SessionClient",
    "Splitter",
    "__version__",
    "build_info",
    "default_max_parallelism",
    "failpoint",
    "handle_json",
    "options_table",
    "parse_duration",
    "parse_options",
    "parse_size",
    "spec_check",
]

__version__: str
"""The package's version."""

PROTOCOL_VERSION: int
"""Version of the protocol between workers and the state server."""

class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class SessionClient:
    """A session at the state server: `merge` any number of payloads, `finish`, read the results, `commit`.

    Closing it before `commit` has returned aborts it: nothing of it is kept. It belongs to one thread at a time.
    """

    def __new__(
        cls,
        socket_path: str,
        request_json: str,
        *,
        log: str = "",
        timeout_seconds: float = 1800.0,
        max_message: int = 268435456,
    ) -> SessionClient:
        """Connects, compares versions, opens the session that `request_json` describes. `log` is for messages."""

    def merge(self, payload: bytes) -> None:
        """Sends one payload (an Arrow IPC stream). An error that it causes may be raised by a later call."""

    def finish(self, persist: bool = True) -> ResultBatches:
        """Ends the payloads. With `persist`, the server makes the new version durable while results are read."""

    def commit(self) -> tuple[str, dict[str, int]]:
        """Waits until the new version is durable: its handle, and what the session did. Unread results are skipped."""

    def close(self) -> None:
        """Ends the session; an abort unless it was committed. May be called again."""

    def __enter__(self) -> SessionClient: ...
    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class ResultBatches:
    """The results of a session, in order; reading them to the end is part of the session."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch, known even when there is none."""

    def __iter__(self) -> ResultBatches: ...
    def __next__(self) -> pa.RecordBatch: ...

@final
class ServerClient:
    """A connection to the state server that is not a session."""

    def __new__(cls, socket_path: str, *, log: str = "", timeout_seconds: float = 30.0) -> ServerClient:
        """Connects and compares versions."""

    def ping(self) -> None:
        """Returns when the server answers."""

    def metrics(self) -> str:
        """All counters, as a JSON object."""

    def shards(self) -> str:
        """The live shards, as a JSON array."""

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

    def begin_materialize(self, shard_id: str) -> MaterializeRun | None:
        """Starts a materialization; None when nothing changed since the last one."""

    def set_shard_failure(self, shard_id: str, message: str | None) -> None:
        """From now on opening this shard fails with `message`; None lets it open again."""

    def close_idle(self) -> None:
        """Closes shards that nobody opened for a while."""

    def metrics(self) -> dict[str, int]:
        """All counters by name."""

    def connections(self) -> int:
        """Connections that are open now."""

    def idle_seconds(self) -> float:
        """How long nobody has been connected; 0 while somebody is."""

    def shutdown_requested(self) -> bool:
        """True once a client asked the server to end."""

    def log(self, level: str, event: str, fields: Mapping[str, str]) -> None:
        """Writes one line to the log."""

    def stop(self, patience_seconds: float) -> bool:
        """Ends all connections, then the engine; True when every thread ended in time. May be called again."""

@final
class MaterializeRun:
    """A materialization that has begun: `run`, then exactly one of `complete` and `abort`."""

    def run(self) -> None:
        """Uploads; returns when it is durable."""

    def complete(self) -> None:
        """Lets the next handles start from the new base."""

    def abort(self, message: str) -> None:
        """Gives up."""

@final
class Splitter:
    """The map side: rows in, payloads per shard out."""

    def __new__(cls, spec: str, shards: int, max_parallelism: int, payload_bytes: int) -> Splitter:
        """`spec` is the JSON of an aggregate specification."""

    def push(self, batch: _ArrowArray | _ArrowStream) -> list[tuple[int, bytes]]:
        """Takes a record batch, or a stream of them; gives the payloads that are full."""

    def finish(self) -> list[tuple[int, bytes]]:
        """Gives what is left."""

def spec_check(spec: str) -> None:
    """Raises `InvalidArgument` when an aggregate specification cannot work; also for unsupported types."""

def default_max_parallelism(shards: int) -> int:
    """Key groups of a state with `shards` shards, where the option `max_parallelism` is 0."""

def handle_json(text: str) -> str:
    """A handle, as it is kept in Spark's state, as a JSON object. Ids are 128-bit numbers."""

def options_table() -> list[tuple[str, str, str]]:
    """`(name, default, meaning)` of every option."""

def parse_options(options: Mapping[str, str]) -> None:
    """Checks names and values of options. Raises `InvalidArgument` with the nearest known name."""

def parse_duration(name: str, value: str) -> float:
    """Seconds of a duration's text; `name` is for the message."""

def parse_size(name: str, value: str) -> int:
    """Bytes of a size's text; `name` is for the message."""

def build_info() -> dict[str, str]:
    """How this binary was built: version, profile, protocol, target."""

def failpoint(name: str) -> None:
    """A named place where a test can hold, fail or kill this process; free unless `FASTCHANGELOG_FAILPOINTS` is set."""
