"""Addresses on S3: the bucket that a URI names, prefixes of any letters, what consoles leave in a bucket.

Owns: styles of addresses, endpoints with the bucket, prefixes and the addresses that are shown, folder markers, odd
names.
Does not own: other operation (`test_s3`), credentials (`test_s3_credentials`).
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

import fastchangelog as fc
from fastchangelog import cli
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.options import gather_storage_options
from support.stores.logs import expected, open_log, read_log, refused, write_log
from support.stores.places import S3Place

S3A = "spark.hadoop.fs.s3a."
VALUES = [b"one", b"two"]


def without_endpoint(place: S3Place) -> dict[str, str]:
    return {name: value for name, value in place.credentials.items() if name != "aws_endpoint"}


def ways(place: S3Place, endpoint: str, style: str | None, environment: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The same endpoint and style (`true` = virtual-hosted) as storage options, from the environment, as Hadoop's."""
    options = {**without_endpoint(place), "aws_endpoint": endpoint}
    conf = {f"{S3A}endpoint": endpoint}
    environment.setenv("AWS_ENDPOINT_URL", endpoint)
    if style is not None:
        options["aws_virtual_hosted_style_request"] = style
        conf[f"{S3A}path.style.access"] = "false" if style == "true" else "true"
        environment.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", style)
    else:
        environment.delenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", raising=False)
    hadoop = gather_storage_options(place.uri, without_endpoint(place), conf)
    return [options, without_endpoint(place), hadoop]


@pytest.mark.parametrize("style", [None, "false", "true"])
def test_objects_go_to_the_bucket_that_the_uri_names(
    bucket: S3Place, monkeypatch: pytest.MonkeyPatch, style: str | None
) -> None:
    for storage_options in ways(bucket, bucket.proxy.url, style, monkeypatch):
        with open_log(bucket, storage_options=storage_options) as storage:
            handle = write_log(storage, VALUES)
            assert read_log(storage, handle) == expected(VALUES)
    names = bucket.names()
    assert len(names) == 3
    assert all(name.startswith("log/log/") for name in names), "below the folder of the URI, and nothing twice"


@pytest.mark.parametrize("style", [None, "false"])
def test_an_endpoint_with_the_bucket_in_its_path_is_refused(
    bucket: S3Place, monkeypatch: pytest.MonkeyPatch, style: str | None
) -> None:
    endpoint = f"{bucket.proxy.url}/{bucket.bucket}"
    for storage_options in ways(bucket, endpoint, style, monkeypatch):
        error = refused(bucket, InvalidArgumentError, storage_options=storage_options)
        assert "leave it out of the endpoint" in str(error)
    assert bucket.names() == []


def test_an_endpoint_with_the_bucket_in_its_host_is_refused(bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = f"http://{bucket.bucket}.localhost:{bucket.proxy.host.split(':')[1]}"
    for storage_options in ways(bucket, endpoint, None, monkeypatch):
        error = refused(bucket, InvalidArgumentError, storage_options=storage_options)
        assert "virtual_hosted_style_request" in str(error)
    assert bucket.proxy.counts() == {}


def test_the_environments_bucket_is_not_the_uris(bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BUCKET", "another")
    with open_log(bucket) as storage:
        write_log(storage, VALUES)
    assert len(bucket.names()) == 1


PREFIXES = [
    "with space",
    "ünï/çödé",
    "100%",
    "50%25",
    "per%20cent",
    "a+b",
    "hash#h",
    "quest?ion",
    "tilde~",
    "emoji-😀",
    "trailing/",
]


def value(uri: str, options: dict[str, Any]) -> int:
    base, name = uri.rsplit("/", 1)
    with fc.open_state(base, name=name, storage_options=options, read_only=True) as st:
        return int(st.value_state("t", key="string", value="long")["a"])


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_is_found_as_it_was_given_and_as_it_is_shown(
    bucket: S3Place, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"s3://{bucket.bucket}/{quote(prefix)}"
    options = bucket.credentials
    with fc.open_state(given, storage_options=options) as st:
        st.value_state("t", key="string", value="long")["a"] = 1
        shown = st.uri
    assert all(name.startswith(f"{prefix.strip('/')}/") for name in bucket.names()), "encoded once"
    assert value(f"{given.rstrip('/')}/default", options) == 1
    assert value(shown, options) == 1
    more = [part for name, text in options.items() for part in ("--storage-option", f"{name}={text}")]
    root = f"s3://{bucket.bucket}"
    assert cli.main(["inspect", root, "--json", *more]) == cli.OK
    [row] = json.loads(capsys.readouterr().out)
    assert row["uri"] == shown
    assert cli.main(["inspect", root, *more]) == cli.OK
    listed = capsys.readouterr().out.splitlines()[1].removeprefix("state").strip().split("  ")[0]
    assert value(f"{root}/{listed}", options) == 1
    assert cli.main(["inspect", shown, *more]) == cli.OK
    for address in (given, shown.rsplit("/", 1)[0]):
        assert cli.main(["inspect", address, *more]) == cli.OK
        assert cli.main(["sweep", address, *more]) == cli.OK


@pytest.mark.parametrize("prefix", ["with space", "100%25", "per%2520cent", "hash%23h", "%C3%BC"])
def test_a_handle_is_read_at_the_address_that_it_shows(bucket: S3Place, prefix: str) -> None:
    with open_log(bucket, uri=f"{bucket.uri}/{prefix}") as storage:
        handle = write_log(storage, VALUES)
        shown = storage.uri
    for uri in (shown, handle.to_dict()["storage"], f"{bucket.uri}/{prefix}"):
        with open_log(bucket, uri=uri) as storage:
            assert storage.uri == shown
            assert read_log(storage, handle) == expected(VALUES)


def test_markers_of_folders_and_odd_names_change_nothing(bucket: S3Place, capsys: pytest.CaptureFixture[str]) -> None:
    root = f"s3://{bucket.bucket}/state"
    for marker in ("state/", "state/default/", "state/default/head/", "state/default/log/", "savepoint/"):
        bucket.write(marker, b"")
    with fc.open_state(root, storage_options=bucket.credentials) as st:
        st.value_state("t", key="string", value="long")["a"] = 1
        st.savepoint(f"s3://{bucket.bucket}/savepoint", storage_options=bucket.credentials)
    bucket.write("savepoint/part/", b"")
    more = [part for name, text in bucket.credentials.items() for part in ("--storage-option", f"{name}={text}")]
    for command, uri in [
        ("inspect", root),
        ("sweep", root),
        ("verify", f"s3://{bucket.bucket}/savepoint"),
    ]:
        assert cli.main([command, uri, *more]) == cli.OK, (command, capsys.readouterr())
    bucket.write("state/x//y/z", b"1")
    bucket.write("state/full/", b"1")
    capsys.readouterr()
    for command in (["sweep"], ["sweep", "--delete", "--grace", "1s"]):
        assert cli.main([*command, root, *more, "--json"]) == cli.FOUND
        found = json.loads(capsys.readouterr().out)
        assert found["unknown"] == ["full/", "x//"]
        assert [folder["kept_because"] for folder in found["folders"]] == [None]
    assert cli.main(["inspect", root, *more]) == cli.OK
    assert "x//" in capsys.readouterr().out
    assert bucket.read("state/x//y/z") == b"1"
