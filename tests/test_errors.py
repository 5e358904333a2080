"""The tree of errors: what users may rely on, and what crosses from Rust."""

from __future__ import annotations

import builtins
import copy
import errno
import json
import os
import pickle
import traceback
from pathlib import Path

import pytest

from fastchangelog import _internal, errors
from fastchangelog.spark.failures import explain_error

CLASSES = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_survive_pickle_and_copy(cls: type[errors.FastChangelogError]) -> None:
    error = cls("what happened; what to do")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert str(again) == "what happened; what to do"


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_says_what_to_do(cls: type[errors.FastChangelogError]) -> None:
    assert issubclass(cls, errors.FastChangelogError)
    assert cls is errors.FastChangelogError or "What to do:" in (cls.__doc__ or "")


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        ("InvalidArgumentError", "ValueError"),
        ("ArgumentTypeError", "TypeError"),
        ("ArgumentTypeError", "ValueError"),
        ("StateNotFoundError", "FileNotFoundError"),
        ("SchemaMismatchError", "TypeError"),
        ("PermissionDeniedError", "PermissionError"),
    ],
)
def test_existing_except_clauses_work(ours: str, builtin: str) -> None:
    assert issubclass(getattr(errors, ours), getattr(builtins, builtin))


def test_rust_raises_our_classes_on_one_line() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="did you mean `memory_budget`") as caught:
        _internal.parse_options({"memory_bugdet": "1"})
    assert "\n" not in str(caught.value)
    with pytest.raises(errors.RetryableError, match="no state server answers at /nowhere"):
        _internal.ServerClient("/nowhere", log="the.log")


def test_kinds_and_classes_are_one_to_one() -> None:
    for kind, cls in errors._KINDS.items():
        assert type(errors.error_of_kind(kind, "x")) is cls
        assert errors.kind_of(cls("x")) == kind
    assert type(errors.error_of_kind("from the future", "x")) is errors.InternalError
    assert errors.kind_of(ValueError("x")) == "internal"


def test_the_chain_of_sources_reaches_python(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    with pytest.raises(errors.RetryableError) as caught:
        _internal.ServerClient(missing, log="the.log")
    error = caught.value
    assert isinstance(error.__cause__, FileNotFoundError)
    assert error.__cause__.errno == errno.ENOENT
    assert error.subject == ("path", missing)
    assert error.remedy is not None
    assert str(error).endswith(f"; {error.remedy}")
    with pytest.raises(errors.InvalidArgumentError) as refused:
        _internal.parse_options({"max_in_flight": "many"})
    assert refused.value.subject == ("option", "max_in_flight")


def test_a_traceback_ends_with_our_text() -> None:
    causes = [("cannot write /x", None), ("No space left on device (os error 28)", errno.ENOSPC)]
    error = errors.error_of_kind("store", "the upload failed; free space", "free space", ("path", "/x"), causes)
    lines = traceback.format_exception(error)
    text = "".join(lines)
    assert lines[-1] == "fastchangelog.errors.StoreError: the upload failed; free space\n"
    assert text.index(os.strerror(errno.ENOSPC)) < text.index("CauseError: cannot write /x") < text.index(lines[-1])


def test_parts_survive_pickle_and_the_end_of_a_task() -> None:
    error = errors.error_of_kind("store", "a\n b; c", "c", ("state", "s3://b/q"), [("why", None)])
    again = pickle.loads(pickle.dumps(error))
    assert (again.remedy, again.subject) == ("c", ("state", "s3://b/q"))
    with pytest.raises(errors.StoreError, match=r"^a b; c$") as left:
        errors.raise_one_line(error)
    assert (left.value.remedy, left.value.subject) == (error.remedy, error.subject)
    assert left.value.__cause__ is error.__cause__
    assert left.value.__suppress_context__


@pytest.mark.parametrize("kind", errors._KINDS)
def test_an_error_keeps_its_parts_between_processes(kind: str) -> None:
    causes = [("why", None), (os.strerror(errno.EPERM), errno.EPERM)]
    error = errors.error_of_kind(kind, "a; b", "b", ("path", "/x"), causes)
    again = errors.error_of_kind(*json.loads(json.dumps(errors.parts_of(error))))
    assert type(again) is type(error)
    assert errors.parts_of(again) == errors.parts_of(error)
    assert again.__cause__ is not None
    assert isinstance(again.__cause__.__cause__, PermissionError)


def test_a_bug_keeps_its_stack() -> None:
    bug = KeyError("x")
    with pytest.raises(errors.InternalError, match="KeyError: 'x'; please report it") as left:
        errors.raise_one_line(bug)
    assert left.value.__cause__ is bug
    assert left.value.remedy == "please report it"


def test_a_refusal_is_explained_for_each_version_of_spark() -> None:
    said = "InvalidArgumentError: the checkpoint holds another state. Start a new one"
    newer = f"terminated with exception: \nfastchangelog.errors.{said}\n SQLSTATE: XXKST"
    older = newer.replace(".", "/")  # Spark 4.0
    assert explain_error(newer) == explain_error(older) == said
