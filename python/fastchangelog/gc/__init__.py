"""Garbage collection: finds the objects of a state root that no checkpoint needs, and deletes them.

Owns: nothing itself. The decision is in `plan`, reading and deleting in `collector`, the roots of embedded states in
`checkpoint_log`, the result in `report`. Does not own: Spark's checkpoints (`spark.checkpoint.handles`), the command
(`cli.sweep`).
"""
