"""Spark's checkpoints, read through Spark's public sources.

Owns: the handles of our queries and the states of Spark's own.
Does not own: what becomes of them (`aggregates.seed`, `processor.imported`, `reading`).
"""
