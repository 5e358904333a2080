"""What holds for all tests.

Owns: the environment that every test's processes start from. Does not own: fixtures (they stand beside their tests).
"""

from __future__ import annotations

import os
import pathlib
import sys

HERE = str(pathlib.Path(__file__).parent)
sys.path.insert(0, HERE)  # for `waiting`

# Spark's workers, also those of scripts that tests start, run this interpreter and not the first one on the PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

# The JVMs of tests end before their second compiler pays, and two cores have no use for a collector with many threads.
# With one compiler the JVM keeps 48 MB of code, where Spark's needs more.
_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
# Their workers are forked with pandas and PyArrow in them.
_JVM += " -Dspark.python.daemon.module=warm_pyspark.daemon"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")]))
if _JVM not in os.environ.get("SPARK_SUBMIT_OPTS", ""):  # a worker of pytest-xdist has what its parent has
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_JVM}"
