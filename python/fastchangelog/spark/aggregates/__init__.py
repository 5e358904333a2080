"""Aggregations of `grouped`.

Owns: the meaning of keys and aggregates, and what runs in tasks.
Does not own: the entry point (`grouped_stream`), accumulators (the Rust core).
"""
