"""The error of a task whose state lies elsewhere than its checkpoint says."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import NoReturn

import pytest

pytest.importorskip("pyspark")
from fastchangelog.errors import StateNotFoundError
from fastchangelog.spark import lost_states

OBJECT = "log/0f"


@pytest.fixture(autouse=True)
def _handle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_states, "objects_of", lambda handle: {OBJECT})


def refuse(request: str, options: Mapping[str, str], confs: Mapping[str, str]) -> NoReturn:
    raise StateNotFoundError(f"{OBJECT} is not there; put it back")


def said(root: str, handle: str | None = "a handle") -> str:
    request = {"root": root, "query_id": "new-id", "name": "default", "handle": handle}
    with pytest.raises(StateNotFoundError) as caught:
        lost_states.open_or_explain(refuse, request, {}, {})
    return str(caught.value)


def test_a_state_of_another_query_id_is_named_with_both_ids(tmp_path: pathlib.Path) -> None:
    state = tmp_path / "a root"
    (state / "other" / "default" / "log").mkdir(parents=True)
    (state / "old-id" / "default" / "log").mkdir(parents=True)
    (state / "old-id" / "default" / OBJECT).write_bytes(b"")
    for root in (str(state), state.as_uri()):
        text = said(root)
        assert text.startswith(f"{OBJECT} is not there")
        assert "The ids differ: the checkpoint's file `metadata` names the query new-id" in text
        assert "the query old-id wrote this state" in text


def test_a_state_that_is_nowhere_says_where_it_is_looked_for(tmp_path: pathlib.Path) -> None:
    for root in (str(tmp_path), str(tmp_path / "missing"), "s3://bucket/state"):
        text = said(root)
        assert f"places the state in {root}/new-id/default" in text
        assert "give its root as state=" in text
        assert "write the old one back" in text


def test_a_new_state_has_no_other_place(tmp_path: pathlib.Path) -> None:
    assert said(str(tmp_path), handle=None) == f"{OBJECT} is not there; put it back"
