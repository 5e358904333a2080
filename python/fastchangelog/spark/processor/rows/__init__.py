"""Processors of the Row API.

Owns: what user code takes and yields as Rows.
Does not own: states (`processor.states`), calls of user code (`processor.run`).
"""
