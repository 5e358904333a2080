"""Garbage collection: finds the objects of a state root that no checkpoint needs, and deletes them.

Owns: the list of its parts: `plan` decides, `collector` reads and deletes, `checkpoint_log` has the roots of embedded
states, `report` the result. Does not own: Spark's checkpoints (`checkpoints.handles`), the command
(`cli.sweep`).
"""
