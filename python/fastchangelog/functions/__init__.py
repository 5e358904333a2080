"""Aggregate functions: `count()`, `sum("price")`, … describe an aggregate as data.

Owns: the public names. Does not own: what an aggregate means (the Rust core, whose table lists the functions), its use
on a data frame (`fastchangelog.spark`), on an embedded state (`fastchangelog.embedded`). Imports nothing but the
standard library, so that `import fastchangelog` stays cheap.

Results, null rules and overflow are those of Spark's aggregate of the same name. Each function takes `where=`: only
rows for which it is true are counted.

>>> from fastchangelog import functions as F
>>> F.sum("price", where="price > 0").alias("total")
sum(price) where price > 0 as total
"""

from fastchangelog.functions import logic, selections, statistics, sums
from fastchangelog.functions.aggregate import Aggregate
from fastchangelog.functions.logic import *  # noqa: F403
from fastchangelog.functions.selections import *  # noqa: F403
from fastchangelog.functions.statistics import *  # noqa: F403
from fastchangelog.functions.sums import *  # noqa: F403

__all__ = ["Aggregate"]
__all__ += logic.__all__
__all__ += selections.__all__
__all__ += statistics.__all__
__all__ += sums.__all__
