"""The changelog under faults of its store: refusals, lost requests and answers, broken and slow bodies.

Owns: what is right after every fault of the network: one object and success, or one clear error and nothing left.
Does not own: operation without faults (`test_s3`), wrong credentials (`test_s3_credentials`).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fastchangelog.errors import CorruptDataError, RetryableError, StoreError
from support.stores.fault_proxy import FaultProxy
from support.stores.faults import (
    DELETE,
    GET,
    HEAD,
    PASS,
    PUT,
    Answer,
    Cut,
    Fault,
    Flip,
    Hold,
    Refuse,
    Reply,
    ResetAfter,
    ResetBefore,
    Shorten,
)
from support.stores.logs import ATTEMPTS, BOUND, append, expected, open_log, random_values, read_log, refused, write_log
from support.stores.places import S3Place, s3_options
from support.stores.servers import refusing_port
from support.waiting import until

VALUES = random_values(50, 1000)

INTERNAL = Refuse(500, "InternalError", "We encountered an internal error. Please try again.")
SLOW_DOWN = Refuse(503)
TOO_MANY = Refuse(429, "TooManyRequests", "Slow down")
TIMED_OUT = Refuse(400, "RequestTimeout", "Your socket connection was not read from within the timeout period.")
DIGEST = Refuse(400, "BadDigest", "The SHA256 you specified did not match what we received.")
CONFLICT = Refuse(409, "ConditionalRequestConflict", "A conflicting operation occurred during this request.")


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([SLOW_DOWN], id="503"),
        pytest.param([SLOW_DOWN] * (ATTEMPTS - 1), id="503-until-the-last-attempt"),
        pytest.param([INTERNAL], id="500"),
        pytest.param([TOO_MANY], id="429"),
        pytest.param([TIMED_OUT], id="socket-timed-out"),
        pytest.param([DIGEST], id="damaged-on-the-way"),
        pytest.param([CONFLICT], id="409"),
        pytest.param([ResetBefore()], id="lost-request"),
        pytest.param([ResetAfter()], id="lost-answer"),
        pytest.param([ResetAfter(), ResetAfter()], id="two-lost-answers"),
        pytest.param([SLOW_DOWN, ResetBefore(), ResetAfter()], id="all-three"),
    ],
)
def test_a_write_that_is_repeated_leaves_one_object(bucket: S3Place, faults: list[Fault]) -> None:
    bucket.proxy.script(*faults, on=PUT)
    with open_log(bucket) as storage:
        handle = write_log(storage, VALUES)
    assert len(bucket.names()) == 1
    assert bucket.proxy.counts()[PUT] == len(faults) + 1
    assert len({put.path for put in bucket.proxy.requests(PUT)}) == 1, "every attempt has the same name"
    bucket.proxy.heal()
    with open_log(bucket) as storage:
        assert read_log(storage, handle) == expected(VALUES)


def test_after_a_lost_answer_the_object_is_read_not_rewritten(bucket: S3Place) -> None:
    bucket.proxy.script(ResetAfter(), on=PUT)
    with open_log(bucket) as storage:
        write_log(storage, VALUES)
    assert bucket.proxy.statuses(PUT) == [200, 412]
    assert bucket.proxy.counts()[HEAD] + bucket.proxy.counts()[GET] >= 1
    assert bucket.proxy.counts()[DELETE] == 0


@pytest.mark.parametrize(
    "fault",
    [SLOW_DOWN, INTERNAL, TOO_MANY, ResetBefore(), ResetAfter()],
    ids=["503", "500", "429", "request", "answer"],
)
def test_a_write_that_never_succeeds_leaves_nothing(bucket: S3Place, fault: Fault) -> None:
    # Without looks and conflicts in between: every attempt meets the fault itself.
    bucket.proxy.always(fault, on=(PUT, HEAD))
    error = refused(bucket, RetryableError)
    assert bucket.proxy.counts()[PUT] == ATTEMPTS
    assert bucket.uri in str(error)
    assert "max_attempts" in str(error), "the option to change"
    assert bucket.names() == []


def test_a_lost_answer_to_the_only_attempt_leaves_nothing_either(bucket: S3Place) -> None:
    bucket.proxy.script(ResetAfter(), on=PUT)
    refused(bucket, (RetryableError, StoreError), options={"max_attempts": 1})
    assert bucket.proxy.statuses(PUT) == [200], "it did arrive"
    assert bucket.names() == []


def test_a_writer_goes_on_after_a_failed_persist(bucket: S3Place) -> None:
    with open_log(bucket) as storage, storage.writer("operator", key_groups=range(128)) as writer:
        append(writer, VALUES[:10])
        bucket.proxy.always(SLOW_DOWN, on=PUT)
        failed = writer.persist(writer.initial_sequence_number, checkpoint_id=1)
        with pytest.raises(RetryableError):
            failed.result(timeout=BOUND)
        bucket.proxy.heal()
        start = writer.next_sequence_number
        append(writer, VALUES[10:20])
        handle = writer.persist(start, checkpoint_id=2).result(timeout=BOUND)
        assert read_log(storage, handle) == expected(VALUES[10:20])


def test_an_unanswered_attempt_is_given_up_and_does_no_harm(bucket: S3Place) -> None:
    held = Hold()
    bucket.proxy.script(held, on=PUT)
    with open_log(bucket, options={"request_timeout": "500ms"}) as storage:
        handle = write_log(storage, VALUES)
    [name] = bucket.names()
    stored = bucket.read(name)
    held.gate.set()  # now the first attempt arrives after all
    until("the late request", lambda: bucket.proxy.statuses(PUT)[0] == 412, BOUND)
    assert bucket.read(name) == stored
    with open_log(bucket) as storage:
        assert read_log(storage, handle) == expected(VALUES)


def test_a_store_that_never_answers_is_given_up(bucket: S3Place) -> None:
    held = Hold()
    bucket.proxy.always(held, on=(PUT, HEAD, GET))
    error = refused(bucket, RetryableError, options={"request_timeout": "50ms"})
    assert bucket.proxy.counts()[PUT] == ATTEMPTS
    assert "request_timeout" in str(error)
    held.gate.set()


def test_an_endpoint_that_nothing_listens_at_is_named() -> None:
    with refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        start = time.monotonic()
        error = refused(None, (RetryableError, StoreError), uri="s3://bucket/log", storage_options=s3_options(url))
        assert time.monotonic() - start < BOUND
    assert f"127.0.0.1:{port}" in str(error)
    assert "s3://bucket/log" in str(error)


def test_a_server_that_says_yes_to_everything_is_refused() -> None:
    with FaultProxy(None) as server:
        server.always(Reply(lambda _: Answer(200, b"<html>Welcome!</html>", (("Content-Type", "text/html"),))))
        error = refused(
            None, (RetryableError, StoreError), uri="s3://bucket/log", storage_options=s3_options(server.url)
        )
    assert "s3://bucket/log" in str(error)


BROKEN_ONCE = [
    pytest.param(Cut(0.0), id="nothing-of-the-body"),
    pytest.param(Cut(0.5), id="half-of-the-body"),
    pytest.param(Cut(0.999), id="all-but-the-end"),
    pytest.param(Flip(0.0), id="first-byte-damaged"),
    pytest.param(Flip(0.5), id="middle-damaged"),
    pytest.param(Flip(0.99999), id="last-byte-damaged"),
    pytest.param(ResetBefore(), id="lost-request"),
    pytest.param(ResetAfter(), id="lost-answer"),
    pytest.param(SLOW_DOWN, id="503"),
    pytest.param(INTERNAL, id="500"),
]


@pytest.mark.parametrize("cached", [False, True], ids=["direct", "cached"])
@pytest.mark.parametrize("fault", BROKEN_ONCE)
def test_a_read_that_goes_wrong_once_is_repeated(bucket: S3Place, tmp_path: Path, fault: Fault, cached: bool) -> None:
    with open_log(bucket) as storage:
        handle = write_log(storage, VALUES)
    bucket.proxy.script(fault, on=GET)
    with open_log(bucket) as storage:
        assert read_log(storage, handle, tmp_path / "cache" if cached else None) == expected(VALUES)
    assert bucket.proxy.counts()[GET] >= 2


@pytest.mark.parametrize("cached", [False, True], ids=["direct", "cached"])
@pytest.mark.parametrize("at", [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 0.99999])
def test_damage_that_stays_is_reported_with_the_objects_name(
    bucket: S3Place, tmp_path: Path, at: float, cached: bool
) -> None:
    with open_log(bucket) as storage:
        handle = write_log(storage, VALUES)
    [name] = bucket.names()
    bucket.proxy.always(Flip(at), on=GET)
    cache = tmp_path / "cache" if cached else None
    with open_log(bucket) as storage, pytest.raises(CorruptDataError) as caught:
        read_log(storage, handle, cache)
    assert name.removeprefix("log/") in str(caught.value)
    # What was damaged on the way is not kept: the next reader gets the right bytes.
    bucket.proxy.heal()
    with open_log(bucket) as storage:
        assert read_log(storage, handle, cache) == expected(VALUES)


@pytest.mark.parametrize("fault", [Cut(0.5), Cut(0.999), Shorten(0.5), Shorten(0.0)], ids=str)
def test_a_body_that_stays_short_is_never_taken_for_the_whole(bucket: S3Place, fault: Fault) -> None:
    with open_log(bucket) as storage:
        handle = write_log(storage, VALUES)
    bucket.proxy.always(fault, on=GET)
    with open_log(bucket) as storage, pytest.raises((RetryableError, CorruptDataError)):
        read_log(storage, handle)


@pytest.mark.parametrize("keep", [0, 1, 100, -1], ids=lambda keep: f"keep-{keep}")
def test_an_object_that_lost_its_end_is_corrupt(bucket: S3Place, keep: int) -> None:
    with open_log(bucket) as storage:
        handle = write_log(storage, VALUES)
    [name] = bucket.names()
    bucket.write(name, bucket.read(name)[:keep])
    with open_log(bucket) as storage, pytest.raises(CorruptDataError) as caught:
        read_log(storage, handle)
    assert name.removeprefix("log/") in str(caught.value)


def test_an_object_replaced_by_that_of_another_log_is_corrupt(bucket: S3Place) -> None:
    with open_log(bucket) as storage:
        handle = write_log(storage, VALUES)
        [ours] = bucket.names()
        write_log(storage, VALUES[::-1])
    [other] = set(bucket.names()) - {ours}
    bucket.write(ours, bucket.read(other))
    with open_log(bucket) as storage, pytest.raises(CorruptDataError) as caught:
        read_log(storage, handle)
    assert ours.removeprefix("log/") in str(caught.value)


def test_a_thin_line_is_slow_and_nothing_else(bucket: S3Place) -> None:
    values = random_values(4, 64 << 10)
    bucket.proxy.bandwidth = 2 << 20
    with open_log(bucket) as storage:
        handle = write_log(storage, values)
    with open_log(bucket) as storage:
        assert read_log(storage, handle) == expected(values)
    assert bucket.proxy.counts() == {PUT: 1, GET: 1}
    assert bucket.proxy.bytes_down[GET] >= 256 << 10


def test_every_other_request_failing_loses_and_doubles_nothing(bucket: S3Place) -> None:
    writes = [SLOW_DOWN, ResetBefore(), ResetAfter(), INTERNAL]
    bucket.proxy.script(*(fault for bad in writes * 5 for fault in (bad, PASS)), on=PUT)
    with open_log(bucket) as storage:
        logs = [(values, write_log(storage, values)) for values in (VALUES[n:] for n in range(10))]
    assert len(bucket.names()) == len(logs)
    reads = [Cut(0.5), Flip(0.5), ResetAfter(), SLOW_DOWN]
    bucket.proxy.script(*(fault for bad in reads * 5 for fault in (bad, PASS)), on=GET)
    with open_log(bucket) as storage:
        for values, handle in logs:
            assert read_log(storage, handle) == expected(values)
    assert bucket.proxy.counts()[GET] >= 2 * len(logs)
