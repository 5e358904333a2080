"""Refusals of what Spark refuses as well, with its condition and our remedy.

Owns: the class of these errors, their conditions.
Does not own: when one is raised, the errors of processors (`processor.spark_errors`).
"""

from __future__ import annotations

from pyspark.errors import AnalysisException

from fastchangelog.errors import UnsupportedError

__all__ = ["MULTIPLE_EVENT_TIMES", "UNSUPPORTED_OUTPUT_MODE", "RefusedBySparkError"]

UNSUPPORTED_OUTPUT_MODE = "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"
MULTIPLE_EVENT_TIMES = "MULTIPLE_EVENT_TIME_COLUMNS"


class RefusedBySparkError(UnsupportedError, AnalysisException):
    """Spark refuses this, too: the text begins with its condition, and handlers of Spark's error take it.

    >>> error = RefusedBySparkError(MULTIPLE_EVENT_TIMES, "drop all but one")
    >>> str(error), error.getCondition()
    ('[MULTIPLE_EVENT_TIME_COLUMNS] drop all but one', 'MULTIPLE_EVENT_TIME_COLUMNS')
    """

    def __init__(self, condition: str, message: str):
        AnalysisException.__init__(self, message, condition)
