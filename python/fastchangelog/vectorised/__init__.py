"""Vectorised stateful processors: user code that works on Arrow columns, a chunk of keys at a time.

Owns: what user code sees: `processor` (the base class), `context`, `batch`, `timers`; `run`, which calls it.
Does not own: the kinds of state (`fastchangelog.state`), sessions, catalogs and Spark
(`fastchangelog.spark.processor`). Nothing here needs PySpark.
"""
