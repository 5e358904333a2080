"""Savepoints of queries: taken, read, verified, exported, and used to rescale.

Owns: the list of its parts: each task has a module, `source` finds the state of a batch. Does not own: savepoints (the
core), the commands (`cli`), savepoints of embedded states (`embedded.state`).
"""
