"""The changelog on Azure: the same promises as on S3.

Owns: what differs from S3: addresses, options, the words of refusals, create-only writes.
Does not own: what every HTTP store shares (`test_store_faults`).
"""

from __future__ import annotations

import base64
import logging
import pickle

import pytest

from fastchangelog.errors import (
    CorruptDataError,
    FastChangelogError,
    PermissionDeniedError,
    RetryableError,
    StateNotFoundError,
    StoreError,
)
from support.stores.faults import DELETE, GET, PUT, Cut, First, Flip, Refuse, Request, ResetAfter, ResetBefore
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
from support.stores.places import AZURE_ACCOUNT, AZURE_KEY, AzurePlace
from support.waiting import until

VALUES = random_values(50, 1000)
WRONG_KEY = base64.b64encode(b"sesame-open" * 6).decode()


def test_what_is_written_is_read_back(container: AzurePlace) -> None:
    with open_log(container) as storage:
        handle = write_and_read(storage, VALUES)
    assert container.proxy.counts() == {PUT: 1, GET: 1}
    assert len(container.names()) == 1
    with open_log(container) as storage:
        assert read_log(storage, pickle.loads(pickle.dumps(handle))) == expected(VALUES)


@pytest.mark.parametrize(
    "form", ["az://{c}/a/b", "azure://{c}/a/b", "abfs://{c}/a/b", "abfss://{c}@{a}.dfs.core.windows.net/a/b"]
)
def test_every_address_that_azure_users_know_leads_there(container: AzurePlace, form: str) -> None:
    uri = form.format(c=container.bucket, a=AZURE_ACCOUNT)
    with open_log(container, uri=uri) as storage:
        handle = write_log(storage, VALUES)
    with open_log(container, uri=uri + "/") as storage:
        assert read_log(storage, handle) == expected(VALUES)
    [name] = container.names()
    assert name.startswith("a/b/")


def test_short_names_of_storage_options_will_do(container: AzurePlace) -> None:
    options = {
        "account_name": AZURE_ACCOUNT,
        "account_key": AZURE_KEY,
        "endpoint": container.credentials["azure_storage_endpoint"],
    }
    with open_log(container, storage_options=options) as storage:
        write_and_read(storage, VALUES)


def test_the_environment_gives_what_storage_options_leave_out(
    container: AzurePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in container.credentials.items():
        monkeypatch.setenv(name.upper(), value)
    with open_log(uri=container.uri) as storage:
        write_and_read(storage, VALUES)


def test_the_emulator_needs_no_options_but_its_name(container: AzurePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", container.proxy.url)
    with open_log(container, storage_options={"azure_storage_use_emulator": "true"}) as storage:
        write_and_read(storage, VALUES)


def test_a_given_key_wins_over_a_token_of_the_environment(
    container: AzurePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "token-of-the-environment")
    with open_log(container) as storage:
        write_and_read(storage, VALUES)


def test_a_credential_provider_is_asked_for_the_key(container: AzurePlace) -> None:
    options = {name: value for name, value in container.credentials.items() if "key" not in name}
    provider = {"credential_provider": lambda: {"account_key": AZURE_KEY, "expires_at": None}}
    with open_log(container, storage_options={**options, **provider}) as storage:
        write_and_read(storage, VALUES)


def test_two_hundred_small_writers_share_one_put(container: AzurePlace) -> None:
    container.proxy.latency = 0.02
    with open_log(container, options={"persist_delay": "1s"}) as storage:
        writers = [storage.writer(f"operator-{number}", key_groups=range(128)) for number in range(200)]
        for number, writer in enumerate(writers):
            append(writer, [b"%d" % number])
        container.proxy.forget()
        futures = [writer.persist(writer.initial_sequence_number, checkpoint_id=1) for writer in writers]
        handles = [future.result(timeout=BOUND) for future in futures]
        assert container.proxy.counts() == {PUT: 1}
        for number in (0, 99, 199):
            assert read_log(storage, handles[number]) == expected([b"%d" % number])


@pytest.mark.parametrize(
    "fault",
    [Refuse(503, "ServerBusy", "busy"), Refuse(500, "InternalError", "sorry"), ResetBefore(), ResetAfter()],
    ids=["503", "500", "lost-request", "lost-answer"],
)
def test_a_write_that_is_repeated_leaves_one_object(
    container: AzurePlace, fault: Refuse | ResetBefore | ResetAfter
) -> None:
    container.proxy.script(fault, on=PUT)
    with open_log(container) as storage:
        handle = write_log(storage, VALUES)
        assert read_log(storage, handle) == expected(VALUES)
    assert len(container.names()) == 1
    assert container.proxy.counts()[PUT] == 2


def test_an_object_of_the_same_name_is_refused_and_stays(container: AzurePlace) -> None:
    foreign = b"of another writer"

    def intrude(request: Request) -> None:
        container.write(container.name_of(request), foreign)

    container.proxy.script(First(intrude), on=PUT)
    error = refused(container, StoreError)
    assert container.proxy.requests(PUT)[0].headers["if-none-match"] == "*"
    assert container.proxy.statuses(PUT) == [409]
    [name] = container.names()
    assert name.removeprefix("log/") in str(error)
    assert container.read(name) == foreign


@pytest.mark.parametrize("fault", [Cut(0.5), Flip(0.5)], ids=["cut", "damaged"])
def test_a_broken_body_is_never_taken_for_the_whole(container: AzurePlace, fault: Cut | Flip) -> None:
    with open_log(container) as storage:
        handle = write_log(storage, VALUES)
    container.proxy.script(fault, on=GET)
    with open_log(container) as storage:
        assert read_log(storage, handle) == expected(VALUES)
    container.proxy.always(fault, on=GET)
    with open_log(container) as storage, pytest.raises((RetryableError, CorruptDataError)):
        read_log(storage, handle)


def test_a_missing_container_is_named(container: AzurePlace) -> None:
    error = refused(container, (StoreError, StateNotFoundError), uri="az://no-such-container/log")
    assert "az://no-such-container/log" in str(error)
    assert "container" in str(error).split("az://no-such-container/log", 1)[1]


def test_a_wrong_key_is_refused_and_not_shown(
    container: AzurePlace, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = {**container.credentials, "azure_storage_account_key": WRONG_KEY}
    error = refused(container, PermissionDeniedError, storage_options=wrong)
    shown = "\n".join([str(error), repr(error), caplog.text, *capfd.readouterr()])
    assert container.uri in str(error)
    assert WRONG_KEY not in shown
    assert container.proxy.counts()[PUT] <= 1


def test_a_signed_address_is_not_shown(container: AzurePlace) -> None:
    # It travels in the query of every request, where HTTP clients love to quote it.
    options = {name: value for name, value in container.credentials.items() if "key" not in name}
    options["azure_storage_sas_key"] = (
        "sv=2021-12-02&ss=b&srt=sco&sp=rwdlac&se=2099-01-01&sig=c2VzYW1lLW9wZW4tc2lnbg%3D%3D"
    )
    error = refused(container, FastChangelogError, storage_options=options)
    assert "sig=" not in str(error)
    assert "c2VzYW1lLW9wZW4tc2lnbg" not in str(error)


def test_handles_hold_no_credential(container: AzurePlace) -> None:
    with open_log(container) as storage:
        handle = write_log(storage, VALUES)
        shown = [repr(storage), repr(handle), str(handle.to_dict())]
    assert not [text for text in shown if AZURE_KEY in text]
    assert AZURE_KEY.encode() not in handle.to_bytes() + pickle.dumps(handle)


def test_what_no_writer_needs_any_more_is_removed(container: AzurePlace) -> None:
    with open_log(container) as storage:
        writer = storage.writer("operator", key_groups=range(128))
        append(writer, VALUES)
        writer.persist(writer.initial_sequence_number, checkpoint_id=1).result(timeout=BOUND)
        writer.reset(writer.initial_sequence_number, writer.next_sequence_number, checkpoint_id=1)
        writer.truncate_and_close(writer.initial_sequence_number)
        until("the removal of the object", lambda: not container.names(), BOUND)
    assert container.proxy.counts()[DELETE] == 1
