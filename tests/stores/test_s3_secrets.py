"""Secrets as files, services and people give them: with blanks, damaged, in addresses, from services with bad moments.

Owns: blanks around values, values that cannot be sent, empty values, secrets in URIs, the metadata service of a
machine.
Does not own: the other sources of credentials, refusals and secrecy (`test_s3_credentials`).
"""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import fastchangelog as fc
from fastchangelog import cli
from fastchangelog.errors import (
    FastChangelogError,
    InvalidArgumentError,
    PermissionDeniedError,
    RetryableError,
)
from support.stores.fault_proxy import FaultProxy
from support.stores.faults import GET, PUT, Answer, Fault, Refuse, Reply, ResetBefore
from support.stores.logs import open_log, refused, write_and_read
from support.stores.places import KEY_ID, REGION, SECRET, TOKEN, S3Place
from support.stores.servers import refusing_port

VALUES = [b"one", b"two"]
BLANKS = ["\n", " ", "\r\n"]

Environment = pytest.MonkeyPatch


def without_credentials(place: S3Place) -> dict[str, str]:
    return {k: v for k, v in place.credentials.items() if k not in ("aws_access_key_id", "aws_secret_access_key")}


# Blanks and damage.


@pytest.mark.parametrize("blank", BLANKS)
def test_blanks_around_storage_options_are_taken_off(bucket: S3Place, blank: str) -> None:
    options = {name: f"{blank}{value}{blank}" for name, value in bucket.credentials.items()}
    with open_log(bucket, storage_options={**options, "aws_session_token": TOKEN + blank}) as storage:
        write_and_read(storage, VALUES)
    assert {request.headers["x-amz-security-token"] for request in bucket.proxy.requests()} == {TOKEN}
    assert {request.key_id for request in bucket.proxy.requests()} == {KEY_ID}


@pytest.mark.parametrize("blank", BLANKS)
def test_blanks_around_variables_and_profiles_are_taken_off(
    bucket: S3Place, monkeypatch: Environment, tmp_path: Path, blank: str
) -> None:
    for name, value in bucket.credentials.items():
        monkeypatch.setenv(name.upper(), value + blank)
    with open_log(uri=bucket.uri) as storage:
        write_and_read(storage, VALUES)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, blank)
    keys = f"[default]\naws_access_key_id = {KEY_ID} \t\naws_secret_access_key =\t{SECRET}  \n"
    (tmp_path / "credentials").write_text(keys)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials") + blank)
    with open_log(uri=bucket.uri) as storage:
        write_and_read(storage, VALUES)


@pytest.mark.parametrize("blank", BLANKS)
def test_blanks_around_credentials_are_removed_at_each_renewal(bucket: S3Place, blank: str) -> None:
    calls: list[int] = []

    def provider() -> dict[str, Any]:
        calls.append(1)
        end = datetime.now(timezone.utc)
        return {"access_key_id": KEY_ID + blank * len(calls), "secret_access_key": SECRET + blank, "expires_at": end}

    with open_log(bucket, storage_options={**without_credentials(bucket), "credential_provider": provider}) as storage:
        write_and_read(storage, VALUES)
        write_and_read(storage, VALUES)
    assert len(calls) > 1
    assert {request.key_id for request in bucket.proxy.requests()} == {KEY_ID}


@pytest.mark.parametrize("name", ["access_key_id", "secret_access_key", "session_token", "region", "endpoint"])
@pytest.mark.parametrize("middle", ["\n", "\x00", "\x7f"])
def test_a_control_character_is_refused_by_its_options_name(
    bucket: S3Place, name: str, middle: str, monkeypatch: Environment
) -> None:
    good = {**bucket.credentials, "aws_session_token": TOKEN}
    value = good[f"aws_{name}"]
    bad = value[:6] + middle + value[6:]
    error = refused(bucket, InvalidArgumentError, storage_options={**good, f"aws_{name}": bad})
    assert name in str(error)
    assert value[6:] not in str(error)
    if middle != "\x00":
        monkeypatch.setenv(f"AWS_{name.upper()}", bad)
        rest = {option: text for option, text in good.items() if option != f"aws_{name}"}
        if name in ("region", "endpoint"):
            error = refused(bucket, InvalidArgumentError, storage_options=rest)
            assert name in str(error).lower()
    if "key" in name or "token" in name:
        answer = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "session_token": TOKEN, name: bad}
        options = {**without_credentials(bucket), "credential_provider": lambda: answer}
        error = refused(bucket, InvalidArgumentError, storage_options=options)
        assert name in str(error)
        assert value[6:] not in str(error)
    assert bucket.proxy.counts() == {}


def test_a_letter_beyond_ascii_is_refused_by_its_options_name(bucket: S3Place) -> None:
    options = {**bucket.credentials, "aws_access_key_id": "ü" + KEY_ID}
    error = refused(bucket, InvalidArgumentError, storage_options=options)
    assert "aws_access_key_id" in str(error)
    assert KEY_ID not in str(error)


def test_what_a_service_gives_is_checked_before_it_is_sent(bucket: S3Place) -> None:
    with FaultProxy(None) as machine:
        serve(machine, {**temporary(), "Token": "tok\nen-of-the-machine"})
        options = {**without_credentials(bucket), "aws_metadata_endpoint": machine.url}
        error = refused(bucket, RetryableError, storage_options=options)
    assert "a character that no key has" in str(error)
    assert bucket.proxy.counts() == {}


VARIABLES = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_ALLOW_HTTP",
    "AWS_SKIP_SIGNATURE",
    "AWS_CONDITIONAL_PUT",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_PROXY_URL",
    "AWS_METADATA_ENDPOINT",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
]


def test_variables_that_are_empty_set_nothing(bucket: S3Place, monkeypatch: Environment) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    with open_log(bucket) as storage:
        write_and_read(storage, VALUES)


def test_empty_storage_options_set_nothing_half_a_key_is_named(bucket: S3Place) -> None:
    options = {**bucket.credentials, "session_token": "", "endpoint_url_s3": "", "aws_profile": " "}
    options.pop("endpoint_url_s3")
    with open_log(bucket, storage_options=options) as storage:
        write_and_read(storage, VALUES)
    error = refused(bucket, InvalidArgumentError, storage_options={**bucket.credentials, "aws_secret_access_key": ""})
    assert "`aws_secret_access_key` is empty" in str(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.split("//")[1], "without a scheme"),
        (lambda url: url.replace("//", "//me:sesame-open@"), "a password"),
        (lambda url: "http://127.0.0.1:99999", "port"),
        (lambda url: f"{url}?sesame-open", "a query"),
    ],
)
def test_an_endpoint_that_cannot_work_is_named(bucket: S3Place, change: Any, words: str) -> None:
    options = {**bucket.credentials, "aws_endpoint": change(bucket.proxy.url)}
    error = refused(bucket, InvalidArgumentError, storage_options=options)
    assert "endpoint" in str(error)
    assert words in str(error)
    assert "sesame-open" not in str(error)


# Secrets in addresses.

SECRET_URIS = [
    "s3n://AKIAEXAMPLE:S3CRETS3CRET@bucket/state",
    "s3n://AKIAEXAMPLE:S3CRET/S3CRET@bucket/state",
    "s3n://AKIAEXAMPLE:1/S3CRET@bucket/state",
    "s3n:/AKIAEXAMPLE:S3CRETS3CRET@bucket/state",
    "s3n:AKIAEXAMPLE:S3CRETS3CRET@bucket/state",
    "s4://AKIAEXAMPLE:S3CRETS3CRET@bucket/x",
    "s3://AKIAEXAMPLE:S3CRETS3CRET@/x",
    "s3a://AKIAEXAMPLE:S3CRETS3CRET@bucket/x",
    "s3://S3CRETS3CRET@bucket/x",
    "S3://AKIAEXAMPLE:S3CRETS3CRET@bucket/x",
    "gs://AKIAEXAMPLE:S3CRETS3CRET@bucket/x",
    "hdfs://me:S3CRETS3CRET@namenode:8020/x",
    "https://user:S3CRETS3CRET@/x",
    "https://S3CRETS3CRET@host/x",
    "az://c/x?sig=S3CRETS3CRET",
    "memory://me:S3CRETS3CRET@x",
    "file://me:S3CRETS3CRET@/x",
]


@pytest.mark.parametrize("uri", SECRET_URIS)
def test_a_secret_in_a_uri_is_refused_and_nowhere_repeated(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    errors: list[BaseException] = []
    with pytest.raises(FastChangelogError) as caught:
        fc.open_state(uri)
    errors.append(caught.value)
    with pytest.raises(FastChangelogError) as caught, fc.ChangelogStorage(uri):
        pass
    errors.append(caught.value)
    with fc.ChangelogStorage(str(tmp_path / "log")) as storage, storage.writer("w", key_groups=range(8)) as writer:
        writer.append(1, b"x")
        handle = writer.persist(0, checkpoint_id=1).result()
    with pytest.raises(FastChangelogError) as caught:
        handle.moved_to(uri)
    errors.append(caught.value)
    with fc.open_state(str(tmp_path)) as st:
        st.value_state("t", key="string", value="long")["a"] = 1
        with pytest.raises(FastChangelogError) as caught:
            st.savepoint(uri)
        errors.append(caught.value)
    with pytest.raises(FastChangelogError) as caught:
        fc.open_state(str(tmp_path / "new"), start_from=uri)
    errors.append(caught.value)
    for command in (["inspect", uri], ["sweep", uri], ["verify", uri]):
        assert cli.main(command) == cli.COULD_NOT_RUN, command
    cli.main(["sweep", str(tmp_path), "--checkpoint", uri])
    printed = capfd.readouterr()
    shown = "\n".join([*map(repr, errors), *map(str, errors), caplog.text, printed.out, printed.err])
    assert "S3CRET" not in shown


@pytest.mark.parametrize("uri", SECRET_URIS)
def test_a_secret_in_the_root_of_a_query_is_refused_at_once(uri: str) -> None:
    settings = pytest.importorskip("fastchangelog.spark.settings")
    with pytest.raises(InvalidArgumentError) as caught:
        settings.check_root(uri)
    assert "S3CRET" not in repr(caught.value)


# The metadata service of a machine.


def temporary() -> dict[str, str]:
    """Credentials as a machine's service hands them out."""
    end = datetime.now(timezone.utc) + timedelta(hours=1)
    return {
        "Code": "Success",
        "AccessKeyId": KEY_ID,
        "SecretAccessKey": SECRET,
        "Token": TOKEN,
        "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def serve(machine: FaultProxy, credentials: dict[str, str]) -> None:
    body = json.dumps(credentials).encode()
    machine.always(Reply(lambda _: Answer(200, b"session")), on=PUT)
    machine.always(Reply(lambda r: Answer(200, b"role" if r.path.endswith("/") else body)), on=GET)


@pytest.mark.parametrize("kind", [PUT, GET])
@pytest.mark.parametrize("fault", [ResetBefore(), Refuse(500), Refuse(503)])
def test_a_metadata_service_with_a_bad_moment_is_asked_again(bucket: S3Place, fault: Fault, kind: str) -> None:
    with FaultProxy(None) as machine:
        machine.script(fault, on=kind)
        serve(machine, temporary())
        options = {**without_credentials(bucket), "aws_metadata_endpoint": machine.url}
        with open_log(bucket, storage_options=options) as storage:
            write_and_read(storage, VALUES)
    assert {request.key_id for request in bucket.proxy.requests()} == {KEY_ID}


def test_a_metadata_service_that_takes_its_time_is_waited_for(bucket: S3Place) -> None:
    with FaultProxy(None) as machine:
        machine.latency = 0.7
        serve(machine, temporary())
        options = {**without_credentials(bucket), "aws_metadata_endpoint": machine.url}
        with open_log(bucket, storage_options=options) as storage:
            write_and_read(storage, VALUES)


def test_a_failing_metadata_service_is_asked_within_bounds(bucket: S3Place) -> None:
    with FaultProxy(None) as machine:
        machine.always(ResetBefore())
        options = {**without_credentials(bucket), "aws_metadata_endpoint": machine.url}
        error = refused(bucket, RetryableError, storage_options=options, options={"max_attempts": 3})
        # The write, and the removal of what it may have left.
        assert 3 <= machine.counts()[PUT] <= 6
    assert "no credentials were found" in str(error)


def test_a_machine_without_a_metadata_service_says_so_soon(bucket: S3Place) -> None:
    begun = time.monotonic()
    with refusing_port() as port:
        options = {**without_credentials(bucket), "aws_metadata_endpoint": f"http://127.0.0.1:{port}"}
        error = refused(bucket, PermissionDeniedError, storage_options=options)
    assert "no credentials were found" in str(error)
    assert time.monotonic() - begun < 2, "the claim is about time"


def test_a_machine_whose_metadata_service_gives_none_says_so(bucket: S3Place) -> None:
    with FaultProxy(None) as machine:
        machine.always(Reply(lambda _: Answer(404)))
        options = {**without_credentials(bucket), "aws_metadata_endpoint": machine.url}
        error = refused(bucket, PermissionDeniedError, storage_options=options)
    assert "no credentials were found" in str(error)
    assert REGION not in str(error)
