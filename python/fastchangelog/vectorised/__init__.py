"""Vectorised stateful processors: user code that works on Arrow columns, a chunk of keys at a time.

Owns: what user code sees: `processor` (the base class), `context`, `batch`, `timers`, the kinds of state; `run`, which
calls it; `session` and `due_timers`, on which processors of rows stand, too.
Does not own: sessions, catalogs and Spark (`fastchangelog.spark.processor`). Nothing here needs PySpark.
"""
