"""PySpark's daemon, which imports what every worker needs before it forks the workers.

A worker imports pandas and PyArrow when it first gets a task, more than a second of CPU; kill tests start hundreds.
Its name ends like that of PySpark's own, by which the demo and the kill tests find workers.

Owns: the packages that are imported early. Does not own: the daemon (PySpark), the setting (tests/conftest.py).
"""

from __future__ import annotations

import numpy  # noqa: F401
import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.ipc  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
