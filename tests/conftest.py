"""What holds for all tests.

Owns: the environment that every test's processes start from. Does not own: fixtures (they stand beside their tests).
"""

from __future__ import annotations

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for `waiting`

# Spark's workers, also those of scripts that tests start, run this interpreter and not the first one on the PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
