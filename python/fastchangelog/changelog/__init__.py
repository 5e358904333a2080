"""The changelog: a log of byte strings by key group in an object store.

Owns: the public classes, one module each, and the conversion of Python's and numpy's data.
Does not own: any behaviour of the log: the core does (`rust/core/src/changelog`).

The semantics are those of Apache Flink's changelog storage (FLIP-158): appends go to the active change set, sets are
uploaded as they fill, and a checkpoint waits for the rest of its range only.

>>> import fastchangelog as fc
>>> with fc.ChangelogStorage("memory://log") as storage:
...     writer = storage.writer("operator-1", key_groups=range(0, 128))
...     writer.append(7, b"seven")
...     writer.append_batch([7, 9], [b"again", b"nine"])
...     handle = writer.persist(0, checkpoint_id=1).result()
...     with storage.reader() as reader:
...         print([(change.key_group, change.value) for change in reader.read(handle)])
[(7, b'seven'), (7, b'again'), (9, b'nine')]
"""

from __future__ import annotations

from fastchangelog.changelog.handle import ChangelogHandle
from fastchangelog.changelog.reader import Change, ChangelogReader
from fastchangelog.changelog.storage import ChangelogStorage, Swept
from fastchangelog.changelog.writer import ChangelogWriter

__all__ = ["Change", "ChangelogHandle", "ChangelogReader", "ChangelogStorage", "ChangelogWriter", "Swept"]
