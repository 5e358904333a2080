"""Options from keyword arguments and Spark's configuration."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fastchangelog import _internal
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.options import gather_options, gather_storage_options, parse_duration, parse_size


@pytest.mark.case("N-03")
def test_explicit_options_win_and_become_texts() -> None:
    conf = {
        "spark.fastchangelog.state": "s3://b/state",
        "spark.fastchangelog.storage.aws_region": "x",
        "spark.fastchangelog.compression": "lz4",
        "spark.fastchangelog.memory_budget": "1GiB",
        "spark.sql.shuffle.partitions": "7",
    }
    found = gather_options(
        {"memory_budget": 1 << 20, "persist_delay": timedelta(milliseconds=50), "file_sync": False}, conf
    )
    assert found == {"compression": "lz4", "memory_budget": "1048576", "persist_delay": "50ms", "file_sync": "false"}


@pytest.mark.case("N-04")
def test_a_switch_of_the_query_beats_that_of_the_session() -> None:
    for ours, theirs in [(True, "false"), (False, "true")]:
        found = gather_options({"file_sync": ours}, {"spark.fastchangelog.file_sync": theirs})
        assert found == {"file_sync": str(ours).lower()}


def test_unknown_names_and_bad_values_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="did you mean `persist_delay`"):
        gather_options(None, {"spark.fastchangelog.persist_dely": "1s"})
    with pytest.raises(InvalidArgumentError, match="persist_delay"):
        gather_options({"persist_delay": 10})
    with pytest.raises(InvalidArgumentError, match="list"):
        gather_options({"persist_delay": []})  # type: ignore[dict-item]


def test_every_option_has_a_default_that_parses_and_a_meaning() -> None:
    for name, default, meaning, _ in _internal.options_table():
        gather_options({name: default})
        assert meaning.endswith(".")


def test_tuning_is_accepted_but_not_offered_for_wrong_names() -> None:
    tuning = {name for name, _, _, is_public in _internal.options_table() if not is_public}
    assert {"hedge_delay", "payload_size"} <= tuning
    found = gather_options({"hedge_delay": "1ms"}, {"spark.fastchangelog.payload_size": "1KiB"})
    assert found == {"hedge_delay": "1ms", "payload_size": "1KiB"}
    with pytest.raises(InvalidArgumentError, match="payload_size"):
        gather_options({"payload_size": "many"})
    for name in tuning:
        with pytest.raises(InvalidArgumentError) as caught:
            gather_options({name + "s": "1"})
        assert f"`{name}`" not in str(caught.value)


def test_durations_and_sizes() -> None:
    assert parse_duration("x", timedelta(1)) == timedelta(1)
    assert parse_duration("x", "10 minutes") == timedelta(minutes=10)
    for text in ("1 hour 30 minutes", "interval 90 minutes", "INTERVAL 1 Hour 30 Minutes", "1h 30m", "1.5 hours"):
        assert parse_duration("x", text) == timedelta(minutes=90)
    assert parse_duration("x", "2 weeks 1 day") == timedelta(days=15)
    for text in ("1 hour 30", "1 hour 2 months", "interval", "-1 hour", "interval '1' hour"):
        with pytest.raises(InvalidArgumentError, match="option `x`"):
            parse_duration("x", text)
    assert parse_size("x", 7) == 7
    assert parse_size("x", "1GiB") == 1 << 30
    with pytest.raises(InvalidArgumentError, match="`x`"):
        parse_duration("x", 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="`x`"):
        parse_size("x", "many")


S3A = "spark.hadoop.fs.s3a."


def test_hadoop_settings_of_s3_are_understood() -> None:
    conf = {
        S3A + "endpoint": "minio:9000",
        S3A + "access.key": "a",
        S3A + "secret.key": "s",
        S3A + "session.token": "t",
        S3A + "endpoint.region": "eu-west-1",
        S3A + "path.style.access": "true",
        S3A + "connection.ssl.enabled": "false",
        S3A + "bucket.b.access.key": "only for b",
    }
    found = gather_storage_options("s3a://b/x", {"aws_region": "us-east-1"}, conf)
    assert found == {
        "aws_access_key_id": "only for b",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
        "aws_region": "us-east-1",
        "aws_endpoint": "http://minio:9000",
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
    }
    assert gather_storage_options("gs://b/x", None, conf) == {}


def test_https_is_the_default_and_anonymous_access_is_kept() -> None:
    conf = {
        S3A + "endpoint": "s3.eu-west-1.amazonaws.com",
        S3A + "aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
    }
    assert gather_storage_options("s3://b/x", None, conf) == {
        "aws_endpoint": "https://s3.eu-west-1.amazonaws.com",
        "aws_skip_signature": "true",
    }
