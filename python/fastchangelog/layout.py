"""Names of the folders and notes in a store, as Python needs them.

Owns: the names, once for all of Python. Does not own: the names of objects inside a folder, and their formats: the
core does (`rust/store/src/paths.rs`), and `_internal.object_type` reads names. A test compares the two.
"""

from __future__ import annotations

__all__ = [
    "CHECKPOINT_LOG",
    "CREATES",
    "FOLDER_META",
    "GC_CHECKPOINTS",
    "GC_STATE",
    "LOG",
    "OWN_PREFIX",
    "PROBE",
    "SAVEPOINT_CLAIM",
    "SAVEPOINT_MANIFEST",
    "SAVEPOINT_PART",
    "SEGMENT_INDEX",
    "SNAPSHOT",
    "STARTS",
    "STATE_FOLDERS",
    "TABLE",
]

LOG = "log"
"""The folder of log objects."""

TABLE = "sst"
"""The folder of RocksDB files of snapshots."""

SNAPSHOT = "base"
"""The folder of manifests of snapshots."""

SEGMENT_INDEX = "index"
"""The folder of lists of older segments."""

STATE_FOLDERS = (LOG, TABLE, SNAPSHOT, SEGMENT_INDEX)
"""The folders of a state's objects."""

CHECKPOINT_LOG = "head"
"""The folder of an embedded state's newest checkpoints."""

PROBE = "probe"
"""The folder of the objects that a garbage collection writes to learn the store's time."""

SAVEPOINT_PART = "part"
"""The folder of a canonical savepoint's sorted entries."""

OWN_PREFIX = "_fastchangelog"
"""Notes begin with this."""

FOLDER_META = "_fastchangelog.json"
"""The query that owns a folder; written before anything else, deleted after everything else."""

GC_STATE = "_fastchangelog-sweep.json"
"""The state of garbage collection: since when each object has been unreachable, and the query's checkpoints."""

GC_CHECKPOINTS = "_fastchangelog-checkpoints.json"
"""A copy of the query's checkpoints in that state; written after it, so that its loss shows."""

STARTS = "_fastchangelog-starts"
"""The folder of the notes of a query's starts, numbered from 0: each names a checkpoint that it started from."""

CREATES = "creates"
"""The type of the note in a root that its store creates objects conditionally; its name depends on the store."""

SAVEPOINT_MANIFEST = "_fastchangelog-savepoint"
"""Written last: with it the folder is a savepoint."""

SAVEPOINT_CLAIM = SAVEPOINT_MANIFEST + ".unfinished"
"""Written first, so that two savepoints never share a folder."""
