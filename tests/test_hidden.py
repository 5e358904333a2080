"""Secrets are not reachable through the frames of an error: a tracker that prints local variables prints `***`.

Owns: errors of calls that were given storage options, and the object that hides them.
Does not own: messages (`test_redaction`, tests/stores).
"""

from __future__ import annotations

import argparse
import json
import pickle
import reprlib
import sys
from collections.abc import Callable
from pathlib import Path
from pprint import pformat
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

import fastchangelog as fc
from fastchangelog.cli.arguments import add_conf, add_store, pairs, state_source
from fastchangelog.hidden import Hidden, unseen
from fastchangelog.options import gather_options, gather_storage_options, request_credentials
from fastchangelog.server import client
from fastchangelog.server.paths import ServerPaths

PACKAGE = str(Path(fc.__file__).parent)
SECRET = "S3CRET-THAT-NO-FRAME-SHOWS"
GIVEN = {"aws_access_key_id": "AKIA", "aws_secret_access_key": SECRET}
CONF = {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.fastchangelog.storage.aws_secret_access_key": SECRET}


def locals_of(error: BaseException) -> str:
    """The local variables of all frames of this package, as an error tracker prints them."""
    seen, found, left = set(), [], [error]
    while left:
        error = left.pop()
        seen.add(id(error))
        step: TracebackType | None = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename.startswith(PACKAGE):
                found += [f"{step.tb_frame.f_code.co_qualname if sys.version_info >= (3, 11) else ''} {name}={value!r}"
                          for name, value in step.tb_frame.f_locals.items()]  # fmt: skip
            step = step.tb_next
        left += [e for e in (error.__cause__, error.__context__) if e is not None and id(e) not in seen]
    return "\n".join(found)


def assert_unseen(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    assert SECRET not in locals_of(caught.value)
    return caught.value


def broken() -> dict[str, str | None]:
    raise RuntimeError("no")


GRANTS: dict[str, Callable[[], Any]] = {
    "not a dict": lambda: [SECRET],
    "not a text": lambda: {"aws_secret_access_key": SECRET, "aws_session_token": 5},
    "no time": lambda: {"aws_secret_access_key": SECRET, "expires_at": "soon"},
    "raises": broken,
}
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown scheme": ("s4://bucket/state", GIVEN),
    "an unknown option": ("s3://bucket/state", {**GIVEN, "aws_place": "x"}),
    "bytes": ("s3://bucket/state", {**GIVEN, "aws_secret_access_key": SECRET.encode()}),
    "no function": ("s3://bucket/state", {**GIVEN, "credential_provider": f"boto3 {SECRET}"}),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", [fc.open_state, fc.ChangelogStorage])
def test_no_frame_of_a_failed_open_shows_storage_options(kind: Callable[..., Any], case: str) -> None:
    uri, given = BAD[case]
    assert_unseen(lambda: kind(uri, storage_options=given).close())


def test_no_frame_of_a_failed_savepoint_shows_storage_options() -> None:
    with fc.open_state("memory://docs/hidden") as st:
        assert_unseen(lambda: st.savepoint("s4://bucket/savepoint", storage_options=GIVEN))
    assert_unseen(lambda: fc.open_state("memory://docs/x", start_from="s4://b/savepoint", storage_options=GIVEN))


@pytest.mark.parametrize("grant", GRANTS)
def test_no_frame_of_a_failed_provider_shows_what_it_gave(grant: str) -> None:
    assert_unseen(lambda: request_credentials(GRANTS[grant]))
    pytest.importorskip("pyspark")
    from fastchangelog.spark import settings

    given = {**GIVEN, "credential_provider": GRANTS[grant]}
    assert_unseen(lambda: settings.resolve_with_expiry(given))


def test_no_frame_shows_settings_of_spark() -> None:
    assert_unseen(lambda: gather_options({"memory_bugdet": "1GiB"}, CONF))
    assert_unseen(lambda: gather_options({}, {**CONF, "spark.fastchangelog.persist_delay": "soon"}))
    assert_unseen(lambda: gather_storage_options("s3://b/x", {"aws_region": []}, CONF))  # type: ignore[dict-item]


def test_no_frame_of_a_failed_session_shows_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    request = json.dumps({"storage_options": GIVEN})
    error = assert_unseen(lambda: client.open_state_session(request))
    assert "cannot start the state server" in str(error)
    monkeypatch.setattr("fastchangelog.server.paths.MAX_SOCKET_PATH", 1)
    assert "no folder for the state server's socket" in str(assert_unseen(ServerPaths.here))


def test_no_frame_of_a_failed_task_shows_storage_options(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from fastchangelog.spark import renewal, settings, shard_task
    from fastchangelog.spark.aggregates import operator

    def refuse(*_: object) -> None:
        raise RuntimeError("no server")

    place = {"root": "s3://bucket/state", "query_id": "q", "name": "default"}
    monkeypatch.setattr(operator, "open_session", refuse)
    monkeypatch.setattr(shard_task, "open_request", lambda *_: place)
    config = shard_task.OperatorConfig("{}", "s3://bucket/state", "default", pa.schema([]), {}, GIVEN, 2)
    assert SECRET not in repr([config, config.storage_options, config.__getstate__()])
    request = {**place, **renewal.credentials(*settings.resolve_with_expiry(config.storage_options))}
    session = operator.ShardProcessor(config)._session(request, iter([]), shard_task.Stopwatch())
    assert "no server" in str(assert_unseen(lambda: next(session)))
    assert "no server" in str(assert_unseen(lambda: operator._InitialSession(config, 0)))


def test_no_frame_of_a_command_shows_its_options() -> None:
    parser = argparse.ArgumentParser()
    add_conf(parser)
    add_store(parser)
    args = parser.parse_args(["--storage-option", f"aws_secret_access_key={SECRET}", "--conf", f"x={SECRET}"])
    assert SECRET not in repr(args)
    assert pairs("--conf", args.conf) == {"x": SECRET}
    assert_unseen(lambda: pairs("--storage-option", [*args.storage_option, Hidden("=")]))
    args.uri = "/state"
    source = state_source(args)
    assert source.storage_options == {"aws_secret_access_key": SECRET}
    assert SECRET not in repr(source)


def test_a_renewal_that_cannot_be_sent_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from fastchangelog.spark import renewal

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    text = renewal.request_text({**renewal.credentials(Hidden(GIVEN), None), "root": "s3://b"})
    assert json.loads(text.show())["storage_options"] == GIVEN
    assert_unseen(lambda: renewal._send(text.show()))


@pytest.mark.parametrize("printed", [repr, str, "{}".format, pformat, reprlib.repr, lambda value: f"{[value]!r}"])
def test_every_way_to_print_a_hidden_value_gives_stars(printed: Callable[[object], str]) -> None:
    hidden = Hidden(GIVEN)
    assert printed(hidden).strip("[]") == "***"
    assert not hasattr(hidden, "__dict__")
    assert SECRET not in repr([getattr(hidden, name) for name in ("show", "__slots__", "__doc__")])
    assert pickle.loads(pickle.dumps(hidden)) == hidden
    assert hidden.show() == GIVEN


def test_a_hidden_call_leaves_its_frames_out_of_the_traceback() -> None:
    @unseen
    def fail(secret: str, *, other: str) -> None:
        def inner(value: str) -> None:
            raise ValueError("no")

        inner(secret + other)

    with pytest.raises(ValueError, match="no") as caught:
        fail(SECRET, other=SECRET)
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "call"
    assert caught.value.__context__ is None
    assert SECRET not in locals_of(caught.value)
