"""The changelog on S3: what is written is read back, by any address and options that S3's users know, in few requests.

Owns: operation without faults, the number of requests, create-only writes, addresses, `spark.hadoop.fs.s3a.*`.
Does not own: faults (`test_store_faults`), where credentials come from, and secrecy (`test_s3_credentials`).
"""

from __future__ import annotations

import base64
import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastchangelog.errors import InvalidArgumentError, StateNotFoundError, StoreError
from fastchangelog.options import gather_storage_options
from support.stores.faults import DELETE, GET, LIST, MULTIPART, PUT, First, Refuse, Request
from support.stores.logs import (
    BOUND,
    append,
    expected,
    open_log,
    random_values,
    read_log,
    refused,
    write_and_read,
    write_log,
)
from support.stores.places import KEY_ID, REGION, SECRET, S3Place
from support.waiting import until

SMALL = [b"one", b"", b"three" * 100, bytes(range(256))]


def test_what_is_written_is_read_back(bucket: S3Place) -> None:
    with open_log(bucket) as storage:
        write_and_read(storage, SMALL)
    assert len(bucket.names()) == 1
    assert bucket.names()[0].startswith("log/"), "below the folder of the URI"


def test_another_process_reads_with_the_pickled_handle_alone(bucket: S3Place) -> None:
    with open_log(bucket) as storage:
        pickled = pickle.dumps(write_log(storage, SMALL))
    with open_log(bucket) as storage:
        assert read_log(storage, pickle.loads(pickled)) == expected(SMALL)


def test_s3a_and_s3_are_the_same_place(bucket: S3Place) -> None:
    s3a = bucket.uri.replace("s3://", "s3a://")
    with open_log(bucket, uri=s3a) as storage:
        handle = write_log(storage, SMALL)
    with open_log(bucket) as storage:
        assert read_log(storage, handle) == expected(SMALL)
        back = write_log(storage, SMALL[::-1])
    with open_log(bucket, uri=s3a) as storage:
        assert read_log(storage, back) == expected(SMALL[::-1])
    assert all(name.startswith("log/") for name in bucket.names())


@pytest.mark.parametrize("folder", ["", "/", "/a/b", "/a/b/", "/with%20space/ä"])
def test_any_folder_of_a_bucket_will_do(bucket: S3Place, folder: str) -> None:
    uri = f"s3://{bucket.bucket}{folder}"
    with open_log(bucket, uri=uri) as storage:
        handle = write_log(storage, SMALL)
    with open_log(bucket, uri=uri) as storage:
        assert read_log(storage, handle) == expected(SMALL)
    [name] = bucket.names()
    assert name.startswith(folder.strip("/").replace("%20", " "))


@pytest.mark.parametrize("prefix", ["aws_", "", "AWS_"])
def test_storage_options_have_the_names_of_object_store(bucket: S3Place, prefix: str) -> None:
    options = {prefix + name.removeprefix("aws_"): value for name, value in bucket.credentials.items()}
    with open_log(bucket, storage_options=options) as storage:
        write_and_read(storage, SMALL)
    assert {request.key_id for request in bucket.proxy.requests()} == {KEY_ID}


def test_the_environment_gives_what_storage_options_leave_out(bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bucket.credentials.items():
        monkeypatch.setenv(name.upper(), value)
    with open_log(bucket, storage_options={}) as storage:
        write_and_read(storage, SMALL)
    with open_log(uri=bucket.uri) as storage:
        write_and_read(storage, SMALL)


def test_the_usual_names_of_the_environment_are_enough(bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # As every AWS SDK knows them.
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": bucket.proxy.url,
    }.items():
        monkeypatch.setenv(name, value)
    with open_log(uri=bucket.uri) as storage:
        write_and_read(storage, SMALL)


def test_storage_options_win_over_the_environment(bucket: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHEENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with open_log(bucket) as storage:
        write_and_read(storage, SMALL)
    assert {request.key_id for request in bucket.proxy.requests()} == {KEY_ID}


def test_an_endpoint_given_wins_over_the_environments_one_for_s3(
    bucket: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment's name is the more special one of the two, but what is given is given.
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with open_log(bucket) as storage:
        write_and_read(storage, SMALL)


def test_settings_of_hadoops_s3a_are_understood(bucket: S3Place) -> None:
    s3a = "spark.hadoop.fs.s3a."
    conf = {
        s3a + "access.key": "of another bucket",
        f"{s3a}bucket.{bucket.bucket}.access.key": KEY_ID,
        s3a + "secret.key": SECRET,
        s3a + "endpoint": bucket.proxy.host,
        s3a + "endpoint.region": REGION,
        s3a + "connection.ssl.enabled": "false",
        s3a + "path.style.access": "true",
    }
    uri = f"s3a://{bucket.bucket}/log"
    with open_log(uri=uri, storage_options=gather_storage_options(uri, conf=conf)) as storage:
        write_and_read(storage, SMALL)
    assert {request.key_id for request in bucket.proxy.requests()} == {KEY_ID}


def test_an_unknown_storage_option_names_the_nearest(bucket: S3Place) -> None:
    wrong = {**bucket.credentials, "aws_secret_acces_key": "sesame-open"}
    error = refused(None, InvalidArgumentError, uri=bucket.uri, storage_options=wrong)
    assert "secret_access_key" in str(error)
    assert "sesame-open" not in str(error)
    assert bucket.proxy.counts() == {}


def test_a_missing_bucket_is_named(bucket: S3Place) -> None:
    error = refused(bucket, (StoreError, StateNotFoundError), uri="s3://no-such-bucket-anywhere/log")
    assert "s3://no-such-bucket-anywhere/log" in str(error)
    assert "bucket does not exist" in str(error)
    assert bucket.proxy.counts()[PUT] <= 1, "asking again does not make it exist"


def test_every_write_creates_and_carries_its_checksum(bucket: S3Place) -> None:
    with open_log(bucket) as storage:
        for _ in range(3):
            write_log(storage, SMALL)
    puts = bucket.proxy.requests(PUT)
    assert len(puts) == 3
    assert len({put.path for put in puts}) == 3
    for put in puts:
        assert put.headers["if-none-match"] == "*"
        digest = base64.b64encode(hashlib.sha256(put.body).digest()).decode()
        assert put.headers["x-amz-checksum-sha256"] == digest
        assert bucket.read(bucket.name_of(put)) == put.body


def test_an_object_of_the_same_name_is_refused_and_stays(bucket: S3Place) -> None:
    foreign = b"of another writer"

    def intrude(request: Request) -> None:
        bucket.write(bucket.name_of(request), foreign)

    bucket.proxy.script(First(intrude), on=PUT)
    error = refused(bucket, StoreError)
    [name] = {bucket.name_of(put) for put in bucket.proxy.requests(PUT)}
    assert name.removeprefix("log/") in str(error)
    assert bucket.proxy.statuses(PUT) == [412]
    assert bucket.names() == [name], "neither overwritten nor removed"
    assert bucket.read(name) == foreign


def test_an_object_of_the_same_name_and_size_is_not_ours(bucket: S3Place) -> None:
    foreign = b""

    def intrude(request: Request) -> None:
        nonlocal foreign
        foreign = bytes(byte ^ 1 for byte in request.body)
        bucket.write(bucket.name_of(request), foreign)

    # The first attempt is refused, so "exists already" could mean that it arrived all the same.
    bucket.proxy.script(Refuse(503), First(intrude), on=PUT)
    refused(bucket, StoreError)
    [name] = bucket.names()
    assert bucket.read(name) == foreign


def test_a_store_that_cannot_create_only_is_written_all_the_same(bucket: S3Place) -> None:
    # Some S3-compatible stores answer so; names are random, so nothing is overwritten there either.
    unknown = Refuse(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
    bucket.proxy.always(unknown, on=PUT, where=lambda request: "if-none-match" in request.headers)
    with open_log(bucket) as storage:
        write_and_read(storage, SMALL)
        write_and_read(storage, SMALL)
    assert bucket.proxy.counts()[PUT] == 3, "found out once"


@pytest.mark.parametrize("threads", [1, 16])
def test_two_hundred_small_writers_share_one_put(bucket: S3Place, tmp_path: Path, threads: int) -> None:
    bucket.proxy.latency = 0.02
    count = 200
    # Long enough for the slowest machine to call `persist` 200 times.
    with open_log(bucket, options={"persist_delay": "1s"}) as storage, ThreadPoolExecutor(threads) as pool:
        writers = [storage.writer(f"operator-{number}", key_groups=range(128)) for number in range(count)]
        for number, writer in enumerate(writers):
            append(writer, [b"%d" % number, b"small"])
        bucket.proxy.forget()
        futures = list(pool.map(lambda w: w.persist(w.initial_sequence_number, checkpoint_id=1), writers))
        handles = [future.result(timeout=BOUND) for future in futures]
        assert bucket.proxy.counts() == {PUT: 1}
        assert len(bucket.names()) == 1
        for writer in writers:
            writer.confirm(writer.initial_sequence_number, writer.next_sequence_number, checkpoint_id=1)
            writer.close()
    with open_log(bucket) as storage, storage.reader(cache_dir=tmp_path / "cache") as reader:
        bucket.proxy.forget()
        for number, handle in enumerate(handles):
            read = [(change.key_group, bytes(change.value)) for change in reader.read(handle)]
            assert read == expected([b"%d" % number, b"small"])
        assert bucket.proxy.counts() == {GET: 1}, "one download for all"


def test_persisting_again_what_is_durable_asks_for_nothing(bucket: S3Place) -> None:
    with open_log(bucket) as storage, storage.writer("operator", key_groups=range(128)) as writer:
        append(writer, SMALL)
        first = writer.persist(writer.initial_sequence_number, checkpoint_id=1).result(timeout=BOUND)
        bucket.proxy.forget()
        again = writer.persist(writer.initial_sequence_number, checkpoint_id=2).result(timeout=BOUND)
        assert bucket.proxy.counts() == {}
        assert read_log(storage, again) == read_log(storage, first) == expected(SMALL)


def test_opening_and_closing_costs_no_listing(bucket: S3Place) -> None:
    with open_log(bucket) as storage:
        storage.writer("operator", key_groups=range(128)).close()
    assert bucket.proxy.counts()[LIST] == 0


def test_forty_megabytes_in_one_change_set_are_read_back(bucket: S3Place, tmp_path: Path) -> None:
    values = random_values(4, 10 << 20)
    whole = {"preemptive_persist_threshold": "64MiB", "persist_size_threshold": "64MiB", "max_in_flight": "256MiB"}
    # Parts, if it goes up in parts, must be repeatable too.
    bucket.proxy.script(Refuse(503), on=(PUT, MULTIPART))
    with open_log(bucket, options=whole) as storage:
        handle = write_log(storage, values)
    assert bucket.unfinished_uploads() == 0
    assert len(bucket.names()) == 1
    with open_log(bucket, options=whole) as storage:
        read = read_log(storage, handle, tmp_path / "cache")
    # Not `read == …`: a difference of 40 MB would be printed.
    assert [group for group, _ in read] == [0, 1, 2, 3]
    assert all(got == value for (_, got), value in zip(read, values))
    assert bucket.proxy.bytes_up[PUT] + bucket.proxy.bytes_up[MULTIPART] >= 40 << 20


def test_what_no_writer_needs_any_more_is_removed(bucket: S3Place) -> None:
    bucket.proxy.script(Refuse(503), on=DELETE)
    with open_log(bucket) as storage:
        writer = storage.writer("operator", key_groups=range(128))
        append(writer, SMALL)
        writer.persist(writer.initial_sequence_number, checkpoint_id=1).result(timeout=BOUND)
        assert len(bucket.names()) == 1
        writer.reset(writer.initial_sequence_number, writer.next_sequence_number, checkpoint_id=1)
        writer.truncate_and_close(writer.initial_sequence_number)
        until("the removal of the object", lambda: not bucket.names(), BOUND)
    assert bucket.proxy.counts()[DELETE] == 2


def test_an_object_that_was_deleted_is_named(bucket: S3Place) -> None:
    with open_log(bucket) as storage:
        handle = write_log(storage, SMALL)
    [name] = bucket.names()
    bucket.admin.delete_object(Bucket=bucket.bucket, Key=name)
    with open_log(bucket) as storage, pytest.raises(StateNotFoundError) as caught:
        read_log(storage, handle)
    assert name.removeprefix("log/") in str(caught.value)


def test_the_whole_log_of_requests_is_known(bucket: S3Place) -> None:
    """A round trip is one PUT and one GET: no HEAD, no listing, no hidden request."""
    with open_log(bucket) as storage:
        handle = write_log(storage, SMALL)
    assert bucket.proxy.counts() == {PUT: 1}
    bucket.proxy.forget()
    with open_log(bucket) as storage:
        assert read_log(storage, handle) == expected(SMALL)
    assert bucket.proxy.counts() == {GET: 1}
