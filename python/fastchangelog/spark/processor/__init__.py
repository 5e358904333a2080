"""PySpark's stateful processors over the sessions of a state server.

Owns: nothing itself; `run` is the way in for workers, and for whatever runs a processor without Spark.
Does not own: the sessions (`fastchangelog.server`), the aggregates of `grouped` (`spark.aggregates`).
"""
