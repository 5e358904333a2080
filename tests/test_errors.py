"""The tree of errors: what users may rely on, and what crosses from Rust."""

from __future__ import annotations

import builtins
import copy
import pickle

import pytest

from fastchangelog import _internal, errors

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
