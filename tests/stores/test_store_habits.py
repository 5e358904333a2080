"""Stores that are like S3 but for one habit: conditions ignored, headers refused, plain http, no certificates.

Owns: what a state, a changelog, `doctor`, `ls` and a sweep make of such a store.
Does not own: faults that pass (`test_store_faults`), the proof that a store creates conditionally (`rust/store`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fastchangelog as fc
from fastchangelog import _internal, cli, server
from fastchangelog.errors import FastChangelogError, InvalidArgumentError, StoreError
from fastchangelog.gc.collector import Collector
from fastchangelog.layout import CREATES
from fastchangelog.server.paths import ServerPaths
from fastchangelog.spark.aggregates.spec import AggregateSpec, spec_json
from support.stores.faults import DELETE, GET, PUT, Answer, First, Refuse, Reply, Request
from support.stores.logs import OPTIONS, open_log, write_and_read
from support.stores.places import KEY_ID, REGION, SECRET, S3Place

FAST = {name: OPTIONS[name] for name in ("max_attempts", "retry_delay", "local_recovery")}
REFUSALS = [
    Refuse(400, "InvalidArgument", "Unsupported header 'x-amz-checksum-sha256' received for this API call."),
    Refuse(501, "NotImplemented", "Header 'x-amz-checksum-sha256' with value 'abc' not implemented"),
]


def open_state(place: S3Place, **more: Any) -> Any:
    return fc.open_state(place.uri, options=FAST, **{"storage_options": place.credentials, **more})


def keep(place: S3Place, **more: Any) -> dict[str, int]:
    """Writes a state, and reads it back."""
    with open_state(place, **more) as state:
        state.value_state("t", key="string", value="long")["a"] = 1
    with open_state(place, read_only=True, **more) as state:
        return dict(state.value_state("t", key="string", value="long").items())


def is_conditional(request: Request) -> bool:
    return "if-none-match" in request.headers


def ignore_conditions(place: S3Place) -> None:
    """The store writes what it is to create whether the name is free or not, as some gateways do."""

    def overwrite(request: Request) -> Answer:
        place.write(place.name_of(request), request.body)
        return Answer(200, headers=(("ETag", '"x"'),))

    place.proxy.always(Reply(overwrite), on=PUT, where=is_conditional)


def is_note(name: str) -> bool:
    """True for the note of the proof."""
    return _internal.object_type(name.rpartition("/")[2]) == CREATES


def finding(capsys: pytest.CaptureFixture[str], place: S3Place) -> dict[str, Any]:
    """What `doctor` says of the place."""
    options = [f"--storage-option={name}={value}" for name, value in place.credentials.items()]
    cli.main(["doctor", "--json", "--state", place.uri, *options])
    [found] = [found for found in json.loads(capsys.readouterr().out) if found["what"] == "state"]
    return dict(found)


def test_a_store_that_ignores_if_none_match_is_refused(bucket: S3Place) -> None:
    ignore_conditions(bucket)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="If-None-Match") as caught:
            open_state(bucket)
        assert "upgrade" in str(caught.value.remedy)
        assert bucket.uri in str(caught.value)
        assert bucket.names() == []
    with open_log(bucket) as storage:
        write_and_read(storage, [b"names of a changelog are random: it needs no condition"])


def test_a_store_that_lost_if_none_match_can_still_be_read(bucket: S3Place) -> None:
    assert keep(bucket) == {"a": 1}
    ignore_conditions(bucket)
    with open_state(bucket, read_only=True) as state:
        assert state.value_state("t", key="string", value="long")["a"] == 1


@pytest.fixture
def open_session(
    bucket: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], _internal.SessionClient]]:
    """Opens a session of the query that is given, at a server of this test."""
    (tmp_path / "run").mkdir()
    (tmp_path / "blockmgr-0").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "blockmgr-0"))
    keys = pa.schema([("k", pa.string())])
    counts = pa.schema([("k", pa.string()), ("n", pa.int64())])
    spec = spec_json(1, keys, counts, [AggregateSpec("count", (), None, False, True, "count(1)")])
    options = {"memory_budget": "64MiB", "retry_delay": "1ms"}
    state = {"root": bucket.uri, "name": "default", "shard": 0, "shards": 1, "batch": 0, "handle": None, "spec": spec}

    def open_of(query: str) -> _internal.SessionClient:
        request = {**state, "query_id": query, "options": options, "storage_options": bucket.credentials}
        return server.open_session(json.dumps(request), options)

    yield open_of
    if ServerPaths.here().socket.exists():
        _internal.ServerClient(str(ServerPaths.here().socket)).shutdown()


def test_a_query_is_refused_at_its_first_start_and_not_later(
    bucket: S3Place, open_session: Callable[[str], _internal.SessionClient]
) -> None:
    open_session("old").close()
    ignore_conditions(bucket)
    for name in bucket.names():
        if is_note(name):
            bucket.admin.delete_object(Bucket=bucket.bucket, Key=name)
    with pytest.raises(InvalidArgumentError, match="If-None-Match"):
        open_session("new")
    assert not [name for name in bucket.names() if name.startswith("log/new/")]
    open_session("old").close()


def test_one_proof_is_enough_for_a_root(bucket: S3Place) -> None:
    keep(bucket)
    [note] = filter(is_note, bucket.names())
    assert note.startswith("log/_fastchangelog-creates-"), "in the root"
    bucket.proxy.forget()
    with open_state(bucket, name="other"):
        pass
    puts = [bucket.name_of(put) for put in bucket.proxy.requests(PUT)]
    assert puts == [f"log/other/head/{number:020}" for number in (1, 2)], "another state in it writes no proof"
    bucket.proxy.forget()
    with open_state(bucket, read_only=True):
        pass
    assert not bucket.proxy.counts()[PUT]
    assert note not in [bucket.name_of(get) for get in bucket.proxy.requests(GET)], "a reader needs no proof"


def test_the_note_of_the_proof_is_no_state_and_no_garbage(bucket: S3Place, capsys: pytest.CaptureFixture[str]) -> None:
    keep(bucket)
    options = [f"--storage-option={name}={value}" for name, value in bucket.credentials.items()]
    assert cli.main(["inspect", bucket.uri, "--json", *options]) == cli.OK
    assert [row["folder"] for row in json.loads(capsys.readouterr().out)] == ["default"]
    root = _internal.ObjectFolder(bucket.uri, {}, bucket.credentials)
    collector = Collector(root, None, grace=0.0, clock=lambda: 9e9, delete=True)  # type: ignore[arg-type]
    [report] = collector.run()
    assert report.kept_because is None
    assert collector.unknown == ()
    assert report.unknown == ()
    assert keep(bucket) == {"a": 1}


@pytest.mark.parametrize("status", [409, 412])
def test_a_taken_name_may_be_refused_in_other_words(bucket: S3Place, status: int) -> None:
    def refuse(request: Request) -> Answer | None:
        if bucket.name_of(request) not in bucket.names():
            bucket.write(bucket.name_of(request), request.body)
            return Answer(200, headers=(("ETag", '"x"'),))
        return Answer(status, b"<Error><Code>Conflict</Code></Error>")

    bucket.proxy.always(Reply(refuse), on=PUT, where=is_conditional)
    assert keep(bucket) == {"a": 1}


def test_a_refusal_that_comes_after_the_overwrite_is_none(bucket: S3Place) -> None:
    def overwrite(request: Request) -> None:
        bucket.write(bucket.name_of(request), request.body)

    bucket.proxy.always(First(overwrite), on=PUT, where=is_conditional)
    with pytest.raises(InvalidArgumentError, match="If-None-Match"):
        open_state(bucket)


def test_a_store_that_knows_no_condition_is_refused(bucket: S3Place) -> None:
    unknown = Refuse(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
    bucket.proxy.always(unknown, on=PUT, where=is_conditional)
    with pytest.raises(InvalidArgumentError, match="If-None-Match"):
        open_state(bucket)
    assert bucket.names() == []


def test_doctor_shows_whether_a_store_can_keep_a_state(bucket: S3Place, capsys: pytest.CaptureFixture[str]) -> None:
    found = finding(capsys, bucket)
    assert found["ok"], found
    assert bucket.names() == []
    ignore_conditions(bucket)
    found = finding(capsys, bucket)
    assert not found["ok"]
    assert "If-None-Match" in found["found"]
    assert "upgrade" in found["fix"]
    bucket.proxy.heal()
    bucket.proxy.always(REFUSALS[0], on=PUT)
    found = finding(capsys, bucket)
    assert "x-amz-checksum-sha256" in found["found"]
    assert "checksum_algorithm" in found["fix"]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["400", "501"])
def test_a_refused_checksum_header_is_named_with_its_option(bucket: S3Place, refusal: Refuse) -> None:
    def has_checksum(request: Request) -> bool:
        return any(name.startswith(("x-amz-checksum", "x-amz-sdk-checksum")) for name in request.headers)

    bucket.proxy.always(refusal, where=has_checksum)

    def write() -> None:
        with open_log(bucket) as storage:
            write_and_read(storage, [b"a"])

    for attempt in (lambda: keep(bucket), write):
        bucket.proxy.forget()
        with pytest.raises(StoreError, match=r"refuses the header `x-amz-checksum-sha256`") as caught:
            attempt()
        assert "`checksum_algorithm` to `none`" in str(caught.value.remedy)
        assert bucket.proxy.counts()[PUT] <= 2, "asking again does not help"
    for none in ("none", ""):
        bucket.credentials["checksum_algorithm"] = none
        assert keep(bucket) == {"a": 1}
        with open_log(bucket) as storage:
            write_and_read(storage, [b"a"])
        assert bucket.proxy.counts()[DELETE]
    del bucket.credentials["checksum_algorithm"]


def test_the_environment_leaves_the_checksum_header_out(bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    keep(bucket)
    assert not [name for request in bucket.proxy.requests() for name in request.headers if "checksum" in name]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_an_endpoint_of_the_environment_may_be_http(
    bucket: S3Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}
    for variable, value in {**keys, name: bucket.proxy.url + "/"}.items():
        monkeypatch.setenv(variable, value)
    assert keep(bucket, storage_options={}) == {"a": 1}


def test_an_endpoint_of_a_profile_may_be_http(bucket: S3Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"[profile lake]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\nregion = {REGION}\n"
        f"endpoint_url = {bucket.proxy.url.upper()}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert keep(bucket, storage_options={"aws_profile": "lake"}) == {"a": 1}


def test_http_that_is_forbidden_is_refused_by_the_options_name(bucket: S3Place) -> None:
    with pytest.raises(InvalidArgumentError, match="`allow_http`"):
        open_state(bucket, storage_options={**bucket.credentials, "aws_allow_http": "false"})


@pytest.mark.parametrize("missing", ["SSL_CERT_DIR", "SSL_CERT_FILE"])
def test_plain_http_needs_no_certificates(
    bucket: S3Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    other = {"SSL_CERT_DIR": "SSL_CERT_FILE", "SSL_CERT_FILE": "SSL_CERT_DIR"}[missing]
    monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(missing, str(tmp_path / "none"))
    assert keep(bucket) == {"a": 1}
    https = {**bucket.credentials, "aws_endpoint": "https://127.0.0.1:1"}
    with pytest.raises(FastChangelogError, match=f"{missing}=") as caught:
        open_state(bucket, storage_options=https)
    assert "ca-certificates" in str(caught.value.remedy)
