"""Types of keys and values, as users write them.

    ddl    a DDL text as a tree of types
    arrow  the Arrow type of a DDL text, a PySpark type or an Arrow type

Owns: the public names of its modules. Does not own: Spark's types of DDL texts (`spark.types.ddl`).
"""

from __future__ import annotations

from fastchangelog.schema.arrow import arrow_type

__all__ = ["arrow_type"]
