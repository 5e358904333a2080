"""Where S3 credentials come from, what happens when they are wrong, and that they are never shown.

Owns: every source of credentials, refusals, secrecy. Does not own: what else storage options say (`test_s3`).
"""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from fastchangelog.errors import FastChangelogError, InvalidArgumentError, PermissionDeniedError, RetryableError
from fastchangelog.options import gather_storage_options
from support.stores.fault_proxy import FaultProxy
from support.stores.faults import GET, PUT, Answer, Refuse, Reply, Request
from support.stores.logs import ATTEMPTS, expected, open_log, read_log, refused, write_and_read, write_log
from support.stores.places import KEY_ID, REGION, SECRET, SECRETS, TOKEN, S3Place, checked_credentials, s3_options
from support.stores.servers import refusing_port, server_tls

VALUES = [b"one", b"two"]

Environment = pytest.MonkeyPatch


def without_credentials(place: S3Place) -> dict[str, str]:
    """The place's storage options but for its credentials."""
    return {k: v for k, v in place.credentials.items() if k not in ("aws_access_key_id", "aws_secret_access_key")}


def later(seconds: float) -> str:
    """A moment from now, as Amazon's services write it."""
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def temporary(key_id: str = KEY_ID, seconds: float = 3600) -> dict[str, str]:
    """Temporary credentials, as a container's or machine's service hands them out."""
    return {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": key_id,
        "SecretAccessKey": SECRET,
        "Token": TOKEN,
        "LastUpdated": later(-60),
        "Expiration": later(seconds),
    }


def signed_with(place: S3Place) -> set[tuple[str | None, str | None]]:
    """The access keys and session tokens that requests came with."""
    return {(request.key_id, request.headers.get("x-amz-security-token")) for request in place.proxy.requests()}


# Sources.


def test_a_session_token_is_sent_along(bucket: S3Place) -> None:
    with open_log(bucket, storage_options={**bucket.credentials, "aws_session_token": TOKEN}) as storage:
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {(KEY_ID, TOKEN)}


def test_the_environments_token_belongs_to_its_key(bucket: S3Place, monkeypatch: Environment) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHEENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-environment")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-environment")
    with open_log(bucket) as storage:
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {(KEY_ID, None)}


def test_requests_of_an_open_bucket_need_no_credentials(bucket: S3Place) -> None:
    anyone = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{bucket.bucket}/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [anyone]})
    bucket.admin.put_bucket_policy(Bucket=bucket.bucket, Policy=policy)
    with open_log(bucket, storage_options={**without_credentials(bucket), "aws_skip_signature": "true"}) as storage:
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {(None, None)}


def test_a_machine_gives_its_credentials(bucket: S3Place) -> None:
    with FaultProxy(None) as machine:
        role = "/latest/meta-data/iam/security-credentials/"
        credentials = json.dumps(temporary()).encode()
        machine.always(Reply(lambda _: Answer(200, b"session")), on=PUT)
        machine.always(Reply(lambda _: Answer(200, b"the-role")), where=lambda request: request.path == role)
        machine.always(Reply(lambda _: Answer(200, credentials)), where=lambda r: r.path == role + "the-role")
        options = {**without_credentials(bucket), "aws_metadata_endpoint": machine.url}
        with open_log(bucket, storage_options=options) as storage:
            write_and_read(storage, VALUES)
        assert {get.headers["x-aws-ec2-metadata-token"] for get in machine.requests(GET)} == {"session"}
    assert signed_with(bucket) == {(KEY_ID, TOKEN)}


def test_a_container_gives_its_credentials(bucket: S3Place, monkeypatch: Environment, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("may-i")
    with FaultProxy(None) as container:
        container.always(Reply(lambda _: Answer(200, json.dumps(temporary()).encode())), on=GET)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{container.url}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        with open_log(bucket, storage_options=without_credentials(bucket)) as storage:
            write_and_read(storage, VALUES)
        assert {get.headers["authorization"] for get in container.requests(GET)} == {"may-i"}
    assert signed_with(bucket) == {(KEY_ID, TOKEN)}


@pytest.fixture
def web_identity(bucket: S3Place, monkeypatch: Environment, tmp_path: Path) -> Callable[[FaultProxy], dict[str, str]]:
    """Sets the environment as Kubernetes does; gives the storage options beside it."""

    def use(sts: FaultProxy) -> dict[str, str]:
        token = tmp_path / "web-identity-token"
        token.write_text("proof-of-identity")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/changelog")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        return {**without_credentials(bucket), "aws_allow_invalid_certificates": "true"}

    return use


def assumed_role(request: Request) -> Answer:
    """What Amazon's token service answers to a good proof of identity."""
    assert request.query["WebIdentityToken"] == "proof-of-identity"
    credentials = (
        f"<AccessKeyId>{KEY_ID}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
        f"<SessionToken>{TOKEN}</SessionToken><Expiration>{later(3600)}</Expiration>"
    )
    result = (
        f"<AssumeRoleWithWebIdentityResult><Credentials>{credentials}</Credentials></AssumeRoleWithWebIdentityResult>"
    )
    body = f"<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>"
    return Answer(200, body.encode(), (("Content-Type", "text/xml"),))


def test_a_web_identity_is_changed_for_credentials(
    bucket: S3Place, tmp_path: Path, web_identity: Callable[[FaultProxy], dict[str, str]]
) -> None:
    with FaultProxy(None, tls=server_tls(tmp_path)) as sts:
        sts.script(Refuse(503))  # a bad moment of the token service is no reason to fail
        sts.always(Reply(assumed_role))
        with open_log(bucket, storage_options=web_identity(sts)) as storage:
            write_and_read(storage, VALUES)
    assert signed_with(bucket) == {(KEY_ID, TOKEN)}


def test_a_web_identity_that_is_refused_is_a_matter_of_rights(
    bucket: S3Place, tmp_path: Path, web_identity: Callable[[FaultProxy], dict[str, str]]
) -> None:
    with FaultProxy(None, tls=server_tls(tmp_path)) as sts:
        sts.always(Refuse(403, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity"))
        error = refused(bucket, PermissionDeniedError, storage_options=web_identity(sts))
    assert "AssumeRoleWithWebIdentity" in str(error)
    assert "proof-of-identity" not in str(error)


PROFILES = f"""
[default]
aws_access_key_id = AKIAOFTHEDEFAULT0000
aws_secret_access_key = secret-of-the-default-profile

[team]
aws_access_key_id = {KEY_ID}
aws_secret_access_key = {SECRET}
aws_session_token = {TOKEN}
"""


@pytest.fixture
def profiles(monkeypatch: Environment, tmp_path: Path) -> None:
    """The files that Amazon's tools share."""
    (tmp_path / "credentials").write_text(PROFILES)
    (tmp_path / "config").write_text(f"[default]\nregion = {REGION}\n[profile team]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def without_region(place: S3Place) -> dict[str, str]:
    return {name: value for name, value in without_credentials(place).items() if name != "aws_region"}


@pytest.mark.usefixtures("profiles")
def test_the_profile_of_the_environment_is_used(bucket: S3Place, monkeypatch: Environment) -> None:
    monkeypatch.setenv("AWS_PROFILE", "team")
    with open_log(bucket, storage_options=without_region(bucket)) as storage:
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {(KEY_ID, TOKEN)}
    assert all("/eu-west-3/s3/" in request.headers["authorization"] for request in bucket.proxy.requests())


@pytest.mark.usefixtures("profiles")
def test_the_profile_of_the_storage_options_wins(bucket: S3Place, monkeypatch: Environment) -> None:
    monkeypatch.setenv("AWS_PROFILE", "default")
    with open_log(bucket, storage_options={**without_region(bucket), "aws_profile": "team"}) as storage:
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {(KEY_ID, TOKEN)}


@pytest.mark.usefixtures("profiles")
def test_the_default_profile_stands_in_for_missing_credentials(bucket: S3Place) -> None:
    with open_log(bucket, storage_options=without_region(bucket)) as storage:
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {("AKIAOFTHEDEFAULT0000", None)}


@pytest.mark.usefixtures("profiles")
def test_keys_that_are_given_win_over_profiles(bucket: S3Place, monkeypatch: Environment) -> None:
    monkeypatch.setenv("AWS_PROFILE", "default")
    with open_log(bucket) as storage:
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {(KEY_ID, None)}


@pytest.mark.usefixtures("profiles")
def test_a_profile_that_does_not_exist_is_named(bucket: S3Place) -> None:
    options = {**without_region(bucket), "aws_profile": "no-such-team"}
    error = refused(bucket, (InvalidArgumentError, PermissionDeniedError), storage_options=options)
    assert "no-such-team" in str(error)
    assert "secret-of-the-default-profile" not in str(error)


def test_a_profile_that_needs_more_than_keys_is_named(
    bucket: S3Place, monkeypatch: Environment, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile team]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = default\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    given = {**without_credentials(bucket), "aws_profile": "team"}
    error = refused(bucket, InvalidArgumentError, storage_options=given)
    assert "`team`" in str(error)
    assert "role_arn" in str(error)


@dataclass
class Rotating:
    """Gives other keys at each call; it can be pickled, as Spark sends it to executors."""

    seconds: float | None
    """How long the keys are good for; none = for ever."""

    calls: list[str] = field(default_factory=list)

    def __call__(self) -> dict[str, Any]:
        key = f"AKIAROTATING{len(self.calls):08}"
        self.calls.append(key)
        end = None if self.seconds is None else datetime.now(timezone.utc) + timedelta(seconds=self.seconds)
        return {"access_key_id": key, "secret_access_key": SECRET, "token": TOKEN, "expires_at": end}


def test_a_credential_provider_is_asked_for_keys(bucket: S3Place) -> None:
    provider: Rotating = pickle.loads(pickle.dumps(Rotating(None)))
    options = {**without_credentials(bucket), "credential_provider": provider}
    with open_log(bucket, storage_options=options) as storage:
        write_and_read(storage, VALUES)
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {("AKIAROTATING00000000", TOKEN)}
    assert len(provider.calls) == 1, "keys without an end are kept"


def test_a_provider_is_asked_again_before_its_keys_expire(bucket: S3Place) -> None:
    provider = Rotating(0)
    options = {**without_credentials(bucket), "credential_provider": provider}
    with open_log(bucket, storage_options=options) as storage:
        write_log(storage, VALUES)
        write_log(storage, VALUES)
    used = [request.key_id for request in bucket.proxy.requests(PUT)]
    assert len(set(used)) == 2
    assert set(used) <= set(provider.calls)


def test_a_provider_that_fails_is_the_cause_of_the_error(bucket: S3Place) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("the vault is sealed")

    options = {**without_credentials(bucket), "credential_provider": broken}
    error = refused(bucket, (PermissionDeniedError, RetryableError), storage_options=options)
    assert "the vault is sealed" in str(error)
    assert bucket.proxy.counts() == {}


def test_a_provider_without_rights_is_not_asked_each_time(bucket: S3Place) -> None:
    calls = []

    def refusing() -> dict[str, Any]:
        calls.append(1)
        raise PermissionError("not for you")

    options = {**without_credentials(bucket), "credential_provider": refusing}
    assert "not for you" in str(refused(bucket, PermissionDeniedError, storage_options=options))
    assert len(calls) <= 2, "for the write, and for the removal of what it may have left"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ("AKIA", "a str"),
        ({"access_key_id": KEY_ID}, "secret_access_key"),
        ({"access_key_id": KEY_ID, "secret_access_key": 7}, "secret_access_key"),
        ({"access_key_id": KEY_ID, "secret_access_key": SECRET, "region": REGION}, "`region`"),
        ({"access_key_id": KEY_ID, "secret_access_key": SECRET, "expires_at": datetime(2030, 1, 1)}, "time zone"),
    ],
)
def test_what_a_credential_provider_returns_is_checked(bucket: S3Place, answer: Any, word: str) -> None:
    options = {**without_credentials(bucket), "credential_provider": lambda: answer}
    error = refused(bucket, InvalidArgumentError, storage_options=options)
    assert word in str(error)
    assert not [hidden for hidden in SECRETS if hidden in str(error)]


def test_a_credential_provider_wins_over_keys(bucket: S3Place) -> None:
    options = {**bucket.credentials, "aws_session_token": "of those keys", "credential_provider": Rotating(None)}
    with open_log(bucket, storage_options=options) as storage:
        write_and_read(storage, VALUES)
    assert signed_with(bucket) == {("AKIAROTATING00000000", TOKEN)}


def test_a_credential_provider_is_a_function(bucket: S3Place) -> None:
    options = {**without_credentials(bucket), "credential_provider": "boto3"}
    assert "credential_provider" in str(refused(bucket, InvalidArgumentError, storage_options=options))


def test_credentials_of_several_places_are_not_mixed() -> None:
    conf = {
        "spark.hadoop.fs.s3a.access.key": "of hadoop",
        "spark.hadoop.fs.s3a.secret.key": "of hadoop",
        "spark.hadoop.fs.s3a.session.token": "of hadoop",
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
    }
    explicit = {"access_key_id": "given", "secret_access_key": "given"}
    assert gather_storage_options("s3a://bucket/log", explicit, conf) == {**explicit, "aws_region": REGION}


def test_no_credentials_anywhere_is_said_so(bucket: S3Place) -> None:
    with refusing_port() as port:
        options = {**without_credentials(bucket), "aws_metadata_endpoint": f"http://127.0.0.1:{port}"}
        error = refused(bucket, (PermissionDeniedError, RetryableError), storage_options=options)
    assert "credentials" in str(error)
    assert bucket.proxy.counts() == {}


# Refusals.


def test_a_wrong_secret_is_refused_at_once_and_not_shown(s3: str, bucket: S3Place) -> None:
    with checked_credentials(s3, ["s3:*"]) as (key_id, secret):
        with open_log(bucket, storage_options=s3_options(bucket.proxy.url, key_id, secret)) as storage:
            write_and_read(storage, VALUES)
        bucket.proxy.forget()
        wrong = "wrong" + secret[5:]
        error = refused(bucket, PermissionDeniedError, storage_options=s3_options(bucket.proxy.url, key_id, wrong))
    assert bucket.proxy.counts()[PUT] <= 1, "no attempt can help"
    assert bucket.uri in str(error)
    assert "credentials" in str(error)
    for hidden in (key_id, secret, wrong):
        assert hidden not in str(error)


def test_an_unknown_key_is_refused_and_not_shown(s3: str, bucket: S3Place) -> None:
    with checked_credentials(s3, ["s3:*"]):
        error = refused(bucket, PermissionDeniedError)
    assert not [hidden for hidden in SECRETS if hidden in str(error)]


def test_rights_to_read_are_not_rights_to_write(s3: str, bucket: S3Place) -> None:
    with open_log(bucket) as storage:
        handle = write_log(storage, VALUES)
    with checked_credentials(s3, ["s3:GetObject", "s3:ListBucket"]) as (key_id, secret):
        reader = s3_options(bucket.proxy.url, key_id, secret)
        with open_log(bucket, storage_options=reader) as storage:
            assert read_log(storage, handle) == expected(VALUES)
        error = refused(bucket, PermissionDeniedError, storage_options=reader)
    assert bucket.uri in str(error)
    assert len(bucket.names()) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "SignatureDoesNotMatch"),
        (403, "InvalidAccessKeyId"),
        (403, "RequestTimeTooSkewed"),
        (400, "ExpiredToken"),
        (400, "InvalidToken"),
        (401, "Unauthorized"),
    ],
)
def test_every_word_for_wrong_credentials_is_understood(bucket: S3Place, status: int, code: str) -> None:
    bucket.proxy.always(Refuse(status, code, "The provided credentials are no good."))
    error = refused(bucket, PermissionDeniedError)
    assert code in str(error)
    assert bucket.proxy.counts()[PUT] <= 1


# Secrecy.


def gossip(status: int) -> Reply:
    """A server that tells in its errors whatever it was told."""

    def make(request: Request) -> Answer:
        told = " ".join(value for name, value in request.headers.items() if name != "authorization")
        fields = f"<AWSAccessKeyId>{request.key_id}</AWSAccessKeyId><StringToSign>{told}</StringToSign>"
        error = f"<Error><Code>AccessDenied</Code><Message>Refused: {told} {request.key_id}</Message>{fields}</Error>"
        return Answer(status, error.encode(), (("Content-Type", "application/xml"),))

    return Reply(make)


def everything_about(error: BaseException | None) -> str:
    """All that a program can show of an error: its chain and its traceback included."""
    return "\n".join([repr(error), *traceback.format_exception(error)]) if error else ""


@pytest.mark.parametrize("status", [400, 403, 404, 409, 412, 500, 503])
@pytest.mark.parametrize("action", ["write", "read"])
def test_no_error_and_no_log_line_shows_a_credential(
    bucket: S3Place, status: int, action: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    options = {**bucket.credentials, "aws_session_token": TOKEN}
    with open_log(bucket, storage_options=options) as storage:
        handle = write_log(storage, VALUES)
    bucket.proxy.always(gossip(status))
    with pytest.raises(FastChangelogError) as caught, open_log(bucket, storage_options=options) as storage:
        if action == "write":
            write_log(storage, VALUES)
        else:
            read_log(storage, handle)
    printed = capfd.readouterr()
    shown = "\n".join([everything_about(caught.value), caplog.text, printed.out, printed.err])
    assert not [hidden for hidden in SECRETS if hidden in shown]


@pytest.mark.parametrize("status", [403, 503])
def test_fetched_credentials_are_hidden_as_given_ones_are(bucket: S3Place, status: int) -> None:
    with FaultProxy(None) as machine:
        credentials = json.dumps(temporary()).encode()
        machine.always(Reply(lambda _: Answer(200, b"session")), on=PUT)
        machine.always(Reply(lambda r: Answer(200, b"role" if r.path.endswith("/") else credentials)), on=GET)
        bucket.proxy.always(gossip(status))
        options = {**without_credentials(bucket), "aws_metadata_endpoint": machine.url}
        error = refused(bucket, FastChangelogError, storage_options=options)
    assert bucket.proxy.requests(PUT)[0].key_id == KEY_ID
    assert not [hidden for hidden in SECRETS if hidden in everything_about(error)]


def test_the_environments_credentials_are_not_shown_either(bucket: S3Place, monkeypatch: Environment) -> None:
    for name, value in {**bucket.credentials, "aws_session_token": TOKEN}.items():
        monkeypatch.setenv(name.upper(), value)
    bucket.proxy.always(gossip(403))
    error = refused(bucket, PermissionDeniedError, storage_options={})
    assert not [hidden for hidden in SECRETS if hidden in everything_about(error)]


def test_handles_hold_no_credential(bucket: S3Place) -> None:
    with open_log(bucket, storage_options={**bucket.credentials, "aws_session_token": TOKEN}) as storage:
        handle = write_log(storage, VALUES)
        shown = [repr(storage), str(storage), repr(handle), str(handle), str(handle.to_dict())]
        stored = [handle.to_bytes(), pickle.dumps(handle), *(bucket.read(name) for name in bucket.names())]
    for hidden in SECRETS:
        assert not [text for text in shown if hidden in text]
        assert not [content for content in stored if hidden.encode() in content]


def test_a_password_in_the_uri_is_refused_and_not_repeated() -> None:
    error = refused(None, InvalidArgumentError, uri=f"s3://{KEY_ID}:sesame-open@bucket/log")
    assert "storage_options" in str(error)
    assert "sesame-open" not in everything_about(error)


def test_attempts_are_not_spent_on_refusals(bucket: S3Place) -> None:
    bucket.proxy.script(*[Refuse(403, "AccessDenied", "Access Denied")] * ATTEMPTS, on=PUT)
    refused(bucket, PermissionDeniedError)
    assert bucket.proxy.counts()[PUT] == 1
    assert bucket.names() == []
