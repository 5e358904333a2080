"""The states of PySpark's processors: what `getValueState`, `getListState` and `getMapState` give, and timers.

Owns: PySpark's handle and its states over the session of a batch.
Does not own: types of values (`spark.types`), vectorised states (`fastchangelog.vectorised`).
"""
