"""Credentials of a session that outlives them: when others are asked for, and what goes wrong.

Owns: the worker's side. Does not own: what the server does with them (tests/stores/test_server_credentials).
"""

from __future__ import annotations

import json
import logging
import threading

import pytest

pytest.importorskip("pyspark")

from fastchangelog.hidden import Hidden
from fastchangelog.spark.renewal import MARGIN, MIN_PAUSE, PAUSE, CredentialRenewal, credentials

REQUEST = {"root": "s3://b/state", "query_id": "q", "name": "default", "shard": 3, "options": {}}


def refuse(_: str) -> None:
    raise AssertionError("nothing is to be sent")


def test_credentials_are_asked_for_shortly_before_their_end() -> None:
    now = 1_000.0
    for left, expected in [(3_600.0, 3_600.0 - MARGIN), (400.0, 200.0), (1.0, MIN_PAUSE), (-50.0, MIN_PAUSE)]:
        renewal = CredentialRenewal(REQUEST, now + left, lambda: ({}, None), clock=lambda: now, send=refuse)
        assert renewal.pause() == expected


def test_what_was_asked_for_is_sent_for_the_state_of_the_session() -> None:
    sent: list[str] = []
    renewal = CredentialRenewal(
        REQUEST, 1_010.0, lambda: ({"token": "t"}, 4_600.5), clock=lambda: 1_000.0, send=sent.append
    )
    renewal.renew()
    assert [json.loads(text) for text in sent] == [
        {
            "root": "s3://b/state",
            "query_id": "q",
            "name": "default",
            "storage_options": {"token": "t"},
            "credentials_expire_at": 4_600_500,
        }
    ]
    assert renewal.pause() == 3_600.5 - MARGIN
    nothing = Hidden({})
    assert credentials(nothing, None) == {"storage_options": nothing, "credentials_expire_at": None}
    assert credentials(nothing, -1.0)["credentials_expire_at"] == 0


def test_a_failing_provider_is_asked_again_and_not_quoted(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Exception | None] = [RuntimeError("open-sesame"), None]

    def grant() -> tuple[dict[str, str], float]:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return {}, 9_000.0

    renewal = CredentialRenewal(REQUEST, 1_010.0, grant, clock=lambda: 1_000.0, send=lambda _: None)
    caplog.set_level(logging.DEBUG)
    renewal.renew()
    assert renewal.pause() == PAUSE
    assert "RuntimeError" in caplog.text
    assert "sesame" not in caplog.text
    renewal.renew()
    assert renewal.pause() > PAUSE


def test_nothing_runs_for_credentials_without_an_end() -> None:
    before = threading.active_count()
    with CredentialRenewal(REQUEST, None, lambda: ({}, None), send=refuse):
        assert threading.active_count() == before


def test_the_thread_renews_and_ends_with_its_session() -> None:
    sent = threading.Event()
    renewal = CredentialRenewal(REQUEST, 0.0, lambda: ({}, None), clock=lambda: 1_000.0, send=lambda _: sent.set())
    with renewal:
        (thread,) = [t for t in threading.enumerate() if t.name == "fcl-renewal"]
        assert sent.wait(60)
    thread.join(60)
    assert not thread.is_alive()
