"""Savepoints of queries: taken, read, verified, exported, and used to rescale.

Owns: nothing itself; each task has a module, and `source` finds the state of a batch. Does not own: savepoints (the
core), the commands (`cli`), savepoints of embedded states (`embedded.state`).
"""
