"""Spark's checkpoints of this library's queries, read without Spark where the core can.

Owns: the list of its parts: `files` is the interface of a reader, `core` the core's reader, `locations` the checkpoints
that it reads, `handles` the handles of a checkpoint, `state_handles` those of one state, `s3_settings` what Spark needs
to write one fast.
Does not own: reading through Spark (`spark.checkpoint.files`), the formats of files (the core).
"""
