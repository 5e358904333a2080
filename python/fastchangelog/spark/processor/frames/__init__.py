"""Processors of the pandas API.

Owns: what user code takes and yields as pandas frames.
Does not own: states (`processor.states`), calls of user code (`processor.run`).
"""
