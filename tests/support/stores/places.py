"""A bucket or container of one test: behind a proxy of its own, and looked into past it.

Owns: making buckets and containers, the credentials of test servers, what is really stored there.
Does not own: the servers (`servers`), the proxy (`fault_proxy`), how a changelog is written and read (`logs`).

What a test looks up here goes to the server itself, by another client than the one under test: it is neither counted
nor broken by the proxy.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit
from xml.etree import ElementTree

from support.stores.fault_proxy import FaultProxy
from support.stores.faults import Request

REGION = "us-east-1"

KEY_ID = "AKIATESTKEYOFSTORES0"
SECRET = "wJalr+sesame/open0123456789abcdefghijklm"
TOKEN = "FwoGZXIvYXdzEsessiontokenofthetests0123456789=="
SECRETS = (KEY_ID, SECRET, TOKEN)
"""What must never be shown; the session token is passed by the tests that need one."""

# The account that every Azurite has, with its published key.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Place(ABC):
    """Where one test stores things."""

    bucket: str
    """The bucket's or container's name."""

    proxy: FaultProxy
    """All traffic of the client under test goes through it."""

    uri: str
    """The folder for a log."""

    credentials: dict[str, str]
    """Storage options that a client needs for this place."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all objects, from the bucket's root."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of an object."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Writes an object, whatever was there."""

    @abstractmethod
    def name_of(self, request: Request) -> str:
        """The name of the object that a request is about."""


class S3Place(Place):
    """A bucket of an S3 server."""

    def __init__(self, admin: Any, proxy: FaultProxy) -> None:
        self.admin = admin
        self.proxy = proxy
        self.bucket = f"test-{uuid.uuid4().hex}"
        self.uri = f"s3://{self.bucket}/log"
        self.credentials = s3_options(proxy.url)
        admin.create_bucket(Bucket=self.bucket)

    def names(self) -> list[str]:
        return [entry["Key"] for entry in self.admin.list_objects_v2(Bucket=self.bucket).get("Contents", ())]

    def read(self, name: str) -> bytes:
        body: bytes = self.admin.get_object(Bucket=self.bucket, Key=name)["Body"].read()
        return body

    def write(self, name: str, content: bytes) -> None:
        self.admin.put_object(Bucket=self.bucket, Key=name, Body=content)

    def name_of(self, request: Request) -> str:
        return request.path.removeprefix(f"/{self.bucket}/")

    def unfinished_uploads(self) -> int:
        """Multipart uploads that were neither completed nor aborted: the store keeps and bills their parts."""
        return len(self.admin.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ()))


def s3_options(endpoint: str, key_id: str = KEY_ID, secret: str = SECRET) -> dict[str, str]:
    """Storage options for a server that is not Amazon's."""
    return {
        "aws_endpoint": endpoint,
        "aws_region": REGION,
        "aws_access_key_id": key_id,
        "aws_secret_access_key": secret,
        "aws_allow_http": "true",
    }


def s3_admin(server: str) -> Any:
    """A client of Amazon's own library."""
    return _client("s3", server)


def _client(service: str, server: str) -> Any:
    import boto3

    return boto3.client(
        service,
        endpoint_url=f"http://{server}",
        region_name=REGION,
        aws_access_key_id="administrator",
        aws_secret_access_key="administrator",
    )


@contextlib.contextmanager
def checked_credentials(server: str, actions: list[str]) -> Iterator[tuple[str, str]]:
    """An access key and its secret, of a user who may do `actions`; the server checks signatures and rights meanwhile.

    The administrator is refused while this lasts.
    """
    iam = _client("iam", server)
    user = f"user-{uuid.uuid4().hex}"
    iam.create_user(UserName=user)
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
    iam.put_user_policy(UserName=user, PolicyName="these", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=user)["AccessKey"]
    _unchecked_requests(server, "0")
    try:
        yield key["AccessKeyId"], key["SecretAccessKey"]
    finally:
        _unchecked_requests(server, "inf")


def _unchecked_requests(server: str, count: str) -> None:
    """Tells moto how many further requests it shall accept with any credentials."""
    with contextlib.closing(http.client.HTTPConnection(server)) as connection:
        connection.request("POST", "/moto-api/reset-auth", count)
        assert connection.getresponse().status == 200


class AzurePlace(Place):
    """A container of an Azurite."""

    def __init__(self, server: str, proxy: FaultProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.bucket = f"test-{uuid.uuid4().hex}"
        self.uri = f"az://{self.bucket}/log"
        self.credentials = {
            "azure_storage_account_name": AZURE_ACCOUNT,
            "azure_storage_account_key": AZURE_KEY,
            "azure_storage_endpoint": f"{proxy.url}/{AZURE_ACCOUNT}",
            "azure_allow_http": "true",
        }
        self._ask("PUT", f"{self.bucket}?restype=container")

    def names(self) -> list[str]:
        listing = ElementTree.fromstring(self._ask("GET", f"{self.bucket}?restype=container&comp=list"))
        return [element.text or "" for element in listing.iterfind(".//Blob/Name")]

    def read(self, name: str) -> bytes:
        return self._ask("GET", f"{self.bucket}/{quote(name)}")

    def write(self, name: str, content: bytes) -> None:
        self._ask("PUT", f"{self.bucket}/{quote(name)}", {"x-ms-blob-type": "BlockBlob"}, content)

    def name_of(self, request: Request) -> str:
        return request.path.removeprefix(f"/{AZURE_ACCOUNT}/{self.bucket}/")

    def _ask(self, method: str, target: str, more: Mapping[str, str] = {}, body: bytes = b"") -> bytes:
        """A request signed with the account's key ("Shared Key" in Azure's reference)."""
        parts = urlsplit(f"/{AZURE_ACCOUNT}/{target}")
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", **more}
        length = str(len(body)) if body else ""
        resource = [f"/{AZURE_ACCOUNT}{parts.path}", *(f"{k}:{v}" for k, v in sorted(parse_qsl(parts.query)))]
        signed = [f"{name}:{value}" for name, value in sorted(headers.items())]
        # The empty lines are headers that are not sent: encoding, language; MD5, type, date and the conditions.
        text = "\n".join([method, "", "", length, *[""] * 8, *signed, *resource])
        signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256))
        headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{signature.decode()}"
        headers["Content-Length"] = str(len(body))
        with contextlib.closing(http.client.HTTPConnection(self.server)) as connection:
            connection.request(method, parts.geturl(), body, headers)
            response = connection.getresponse()
            answer = response.read()
        assert response.status < 300, f"{method} {target}: {response.status} {answer.decode(errors='replace')}"
        return answer
