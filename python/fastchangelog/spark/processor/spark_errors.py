"""Errors that Spark's own operator has a condition for, with its class, its condition and its text.

Owns: the texts of those conditions.
Does not own: when one is raised; errors that Spark has no condition for (`fastchangelog.errors`).

Spark's Python side raises a `PySparkRuntimeError` whose text is that of the JVM's error, behind a few words of its own.
"""

from __future__ import annotations

from pyspark.errors import PySparkRuntimeError

from fastchangelog.spark.processor.spec import TimeMode

__all__ = [
    "CREATED",
    "INITIALIZED",
    "PRE_INIT",
    "TIMER_PROCESSED",
    "DATA_PROCESSED",
    "CLOSED",
    "spark_error",
    "time_mode_name",
]

# The states of a handle, as Spark names them.
PRE_INIT = "PRE_INIT"
CREATED = "CREATED"
INITIALIZED = "INITIALIZED"
DATA_PROCESSED = "DATA_PROCESSED"
TIMER_PROCESSED = "TIMER_PROCESSED"
CLOSED = "CLOSED"

#: Condition → its text, and the SQL state.
_CONDITIONS: dict[str, tuple[str, str]] = {
    "INTERNAL_ERROR_TWS": ("Implicit key not found in state store for stateName={name}", "XX000"),
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE": (
        "Failed to perform stateful processor operation={operation} with invalid handle state={state}.",
        "42802",
    ),
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE": (
        "Failed to perform stateful processor operation={operation} with invalid timeMode={mode}",
        "42802",
    ),
    "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED": (
        "State variable with name {name} has already been defined in the StatefulProcessor.",
        "42802",
    ),
    "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL": (
        "Cannot use TTL for state={name} in timeMode={mode}, use TimeMode.ProcessingTime() instead.",
        "42802",
    ),
    "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE": (
        "TTL duration must be greater than zero for State store operation=update on state={name}.",
        "42802",
    ),
    "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS": (
        "Failed to create column family with unsupported starting character and name={name}.",
        "42802",
    ),
    "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME": (
        "Failed to perform column family operation={operation} with invalid name={name}. Column family name cannot be "
        "empty or include leading/trailing spaces or use the reserved keyword=default",
        "42802",
    ),
    "STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY": (
        "Binary inequality column is not supported with state store. Provided schema: {schema}.",
        "XXKST",
    ),
}


def spark_error(doing: str, condition: str, hint: str = "", **parameters: object) -> PySparkRuntimeError:
    """The error that Spark raises for this condition while `doing` something; `hint` says more than Spark does."""
    text, sql_state = _CONDITIONS[condition]
    message = f"Error {doing}: [{condition}] {text.format(**parameters)} SQLSTATE: {sql_state}"
    return PySparkRuntimeError(f"{message}; {hint}" if hint else message)


def time_mode_name(mode: TimeMode) -> str:
    """A time mode as Spark's texts name it.

    >>> time_mode_name("none")
    'NoTime'
    """
    return {"none": "NoTime", "processingtime": "ProcessingTime", "eventtime": "EventTime"}[mode]
