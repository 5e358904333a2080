"""State that is read outside of its query.

Owns: `read_state`, and what `fastchangelog migrate` says.
Does not own: checkpoints (`checkpoint`), the bytes (the core).
"""
