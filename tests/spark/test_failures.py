"""`explain_error`: cause and remedy, without the stack."""

from __future__ import annotations

import pytest

from fastchangelog.errors import InvalidArgumentError, StoreError
from fastchangelog.spark.failures import explain_error

WORKER = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: Task 0 in
stage 3.0 failed 1 times, most recent: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/worker.py", line 3293, in main
    process()
  File "/x/operator.py", line 80, in handleInputRows
    raise one_line(error) from None
fastchangelog.errors.StoreError: cannot write s3://b/log/x: 403 forbidden; check the rights

\tat org.apache.spark.api.python.BasePythonRunner"""


def test_our_last_line_is_found() -> None:
    ours = "StoreError: cannot write s3://b/log/x: 403 forbidden; check the rights"
    assert explain_error(RuntimeError(WORKER)) == ours


def test_a_cause_is_followed() -> None:
    outer = RuntimeError("query failed")
    outer.__cause__ = RuntimeError(WORKER)
    assert "403" in explain_error(outer)


def test_our_own_errors_explain_themselves() -> None:
    assert explain_error(InvalidArgumentError("no; do this")) == "InvalidArgumentError: no; do this"
    assert explain_error(StoreError("x")) == "StoreError: x"


@pytest.mark.parametrize(
    "text",
    [
        "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS",
        "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED",
        'Cannot invoke "org.apache.spark.sql.internal.SQLConf.stateStoreCheckpointFormatVersion()"',
        "DUPLICATED_METRICS_NAME",
    ],
)
def test_sparks_errors_have_a_remedy(text: str) -> None:
    assert "Remedy:" in explain_error(RuntimeError(f"[{text}] bla"))


def test_a_foreign_error_says_so_on_one_line() -> None:
    assert explain_error(ValueError("boom\n  at x")) == "This is not an error of fastchangelog. Its first line: boom"
