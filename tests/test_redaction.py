"""What Spark would show of storage options among its settings, against a session that only has settings.

Owns: which names are covered, what is set and what is warned of. Does not own: Spark's own redaction (tests/spark).
"""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

pytest.importorskip("pyspark")

from fastchangelog.spark import redaction

PREFIX = "spark.fastchangelog.storage."
KEYS = ["account_key", "sas_key", "service_account_key", "azure_storage_account_key", "access_key", "access_key_id"]


class Session:
    """A Spark session, as far as settings go."""

    def __init__(self, **settings: str) -> None:
        self.settings = {name.replace("__", "."): value for name, value in settings.items()}

    @property
    def conf(self) -> Any:
        outer = self

        class Conf:
            @property
            def getAll(self) -> dict[str, str]:
                return dict(outer.settings)

            def set(self, name: str, value: str) -> None:
                outer.settings[name] = value

        return Conf()


@pytest.fixture(autouse=True)
def _nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_warned", set())


def session_with(names: list[str], **settings: str) -> Any:
    session = Session(**settings)
    session.settings.update({PREFIX + name: "open-sesame" for name in names})
    return session


@pytest.mark.parametrize("name", KEYS)
def test_a_session_redacts_every_storage_option(name: str) -> None:
    spark = session_with([name])
    redaction.redact_storage_options(spark)
    pattern = spark.settings[redaction.OF_SESSION]
    assert re.search(pattern, PREFIX + name)
    assert re.search(pattern, "URL"), "what Spark redacts by itself stays redacted"
    redaction.redact_storage_options(spark)
    assert spark.settings[redaction.OF_SESSION] == pattern, "once"


def test_what_the_user_redacts_stays_redacted() -> None:
    spark = session_with(["account_key"], spark__sql__redaction__options__regex="mine")
    redaction.redact_storage_options(spark)
    for name in ("mine", PREFIX + "account_key"):
        assert re.search(spark.settings[redaction.OF_SESSION], name)


def test_a_session_without_such_settings_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    spark = Session(spark__fastchangelog__state="s3://b/state")
    before = dict(spark.settings)
    redaction.redact_storage_options(spark)  # type: ignore[arg-type]
    assert spark.settings == before
    assert not caplog.records


@pytest.mark.parametrize("name", KEYS)
def test_what_the_environment_page_would_show_is_warned_of_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    spark = session_with([name, "secret_access_key", "region"])
    for _ in range(2):
        redaction.redact_storage_options(spark)
    (record,) = caplog.records
    text = record.getMessage()
    assert PREFIX + name in text
    assert redaction.OF_APPLICATION in text
    assert "secret_access_key" not in text, "the default covers it"
    assert "sesame" not in text
    # The remedy is one.
    remedy = re.search(rf"{redaction.OF_APPLICATION}=(\S+),", text)
    assert remedy is not None
    caplog.clear()
    redaction.redact_storage_options(session_with([name + "_2"], spark__redaction__regex=remedy.group(1)))
    assert not caplog.records


def test_a_pattern_that_only_java_knows_is_not_judged() -> None:
    assert redaction.unredacted([PREFIX + "account_key"], r"\p{L}+key") == []
