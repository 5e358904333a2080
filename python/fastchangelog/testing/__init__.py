"""Tests of user code without Spark.

Owns: the public names. Needs no PySpark.
"""

from fastchangelog.testing.processors import run_processor

__all__ = ["run_processor"]
