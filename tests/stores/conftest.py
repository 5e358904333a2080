"""Servers for all tests of this folder, a bucket or container for each, and an environment without credentials.

Owns: the scope of each fixture. Does not own: the servers (`servers`), the buckets (`places`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from support.stores.fault_proxy import FaultProxy
from support.stores.places import AzurePlace, S3Place, s3_admin
from support.stores.servers import Unavailable, azure_server, s3_server


def _isolated_environment(environment: pytest.MonkeyPatch) -> None:
    """Clients find no credentials, profiles or proxies of the user that runs the tests."""
    for name in tuple(os.environ):
        if name.startswith(("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")) or name.lower().endswith("_proxy"):
            environment.delenv(name)
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    environment.setenv("AWS_CONFIG_FILE", os.devnull)


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    _isolated_environment(monkeypatch)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """`host:port` of the S3 server."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[str]:
    """`host:port` of the Azure server; without one its tests are skipped."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(azure_server())
        except Unavailable as reason:
            pytest.skip(f"no Azure server: {reason}")
        yield server


@pytest.fixture(scope="session")
def admin(s3: str) -> Any:
    """Amazon's own client of the S3 server."""
    with pytest.MonkeyPatch.context() as environment:
        _isolated_environment(environment)
        return s3_admin(s3)


@pytest.fixture
def bucket(s3: str, admin: Any) -> Iterator[S3Place]:
    """An empty bucket behind a proxy of its own."""
    with FaultProxy(s3) as proxy:
        yield S3Place(admin, proxy)


@pytest.fixture
def container(azure: str) -> Iterator[AzurePlace]:
    """An empty container behind a proxy of its own."""
    with FaultProxy(azure) as proxy:
        yield AzurePlace(azure, proxy)
