"""`fc.spark.explain_error(exc)`: cause and remedy of a failed query, without the stack.

Owns: finding our own last line in a Spark error, and the remedies for Spark's errors that users of this package meet.
Does not own: our messages (they carry their remedy), Spark's error classes.
"""

from __future__ import annotations

import re

__all__ = ["explain_error"]

#: Spark 4.0 shows the name of a missing class, in which the refusal of its own operator stands, with slashes for dots.
_OURS = re.compile(r"^(?:.*: )?fastchangelog([./])errors\1(?!CauseError)(\w+): (.*)$", re.MULTILINE)

#: A text in Spark's message -> what it means here, and what to do.
_SPARKS = (
    *(
        (
            text,
            "the query runs with a state store other than RocksDB",
            "unset spark.sql.streaming.stateStore.providerClass or set it to Spark's RocksDBStateStoreProvider; a "
            "checkpoint that was started with another one needs a new checkpoint",
        )
        for text in (
            "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS",  # Spark 4.2 and newer
            "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED",  # Spark 4.1
            # Spark 4.0 fails with a NullPointerException, and only the call tells which.
            "SQLConf.stateStoreCheckpointFormatVersion()",
        )
    ),
    (
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
        "the checkpoint was written by a query with other stateful operators",
        "go back to that query, or start a new checkpoint for this one",
    ),
    (
        "/_stateSchema/",
        "the checkpoint was moved: Spark's metadata in it names its files of schemas with the folder that it was in",
        "move it back; or start from a savepoint that is taken there, grouped(…, start_from=…), with a new checkpoint",
    ),
    (
        "TransformWithStateInPySpark driver worker exited unexpectedly",
        "Spark's Python worker on the driver died before the query started",
        'install what it needs, pip install "fastchangelog[spark]" (protobuf above all), and see the worker\'s log',
    ),
    (
        "DUPLICATED_METRICS_NAME",
        "two grouped() in one query have the same name, or two observe() have",
        'give each its own: grouped(…, name="orders"), grouped(…, name="clicks")',
    ),
    *(
        (
            text,
            "the sink asks for complete mode",
            'use outputMode("update"): the result holds the keys that changed',
        )
        for text in ("Invalid streaming output mode: complete", "Complete output mode")  # by Spark version
    ),
    (
        "ModuleNotFoundError: No module named 'fastchangelog'",
        "the executors' Python has no fastchangelog",
        'install it there too, pip install "fastchangelog[spark]", in the Python that spark.pyspark.python names',
    ),
)


def explain_error(exc: BaseException | str) -> str:
    """Cause and remedy of a failed query, without the stack.

    Args:
        exc: What `awaitTermination()` or `query.exception()` gave, or its text.

    Returns:
        Our own error, or the cause and the remedy of an error of Spark that users of this package meet. Of any other
        error the first line, and that it is another one.

    Example:
        >>> import fastchangelog as fc
        >>> text = "…\\nfastchangelog.errors.StoreError: cannot write s3://b/x: 403; check the rights\\n"
        >>> fc.spark.explain_error(RuntimeError(text))
        'StoreError: cannot write s3://b/x: 403; check the rights'
        >>> fc.spark.explain_error(ValueError("boom"))
        'This is not an error of fastchangelog. Its first line: boom'
    """
    text = exc if isinstance(exc, str) else _whole(exc)
    ours = _OURS.findall(text)
    if ours:
        dot, kind, message = ours[-1]
        return f"{kind}: {message.strip().replace(f'{dot} ', '. ')}"
    for mark, cause, remedy in _SPARKS:
        if mark in text:
            return f"Cause: {cause}.\nRemedy: {remedy}."
    if type(exc).__module__ == "fastchangelog.errors":
        return f"{type(exc).__name__}: {exc}"
    first = next((line for line in str(exc).splitlines() if line.strip()), type(exc).__name__)
    return f"This is not an error of fastchangelog. Its first line: {first.strip()}"


def _whole(error: BaseException) -> str:
    parts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        parts.append(str(error))
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return "\n".join(reversed(parts))
