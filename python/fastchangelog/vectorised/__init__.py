"""Vectorised stateful processors: user code that works on Arrow columns, a chunk of keys at a time.

Owns: what user code sees: `processor` (the base class and its context), `batch`, `value_state`.
Does not own: sessions, catalogs and Spark (`fastchangelog.spark.processor`). Nothing here needs PySpark.
"""
