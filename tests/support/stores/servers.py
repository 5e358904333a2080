"""Real servers for tests: an S3 server (moto) and an Azure one (Azurite), each a process that ends with the tests.

Owns: starting and ending the servers, the installation of Azurite, certificates of test servers, ports that refuse.
Does not own: buckets, containers and credentials (`places`), what happens on the way (`fault_proxy`).

A server's standard input is a pipe from the tests. It ends when that is closed, so none outlives even a killed run.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

AZURITE_VERSION = "3.37.0"
CACHE = Path(os.environ.get("FASTCHANGELOG_CACHE") or Path.home() / ".cache" / "fastchangelog").expanduser().absolute()

_START_BOUND = 60.0
_END_BOUND = 10.0
_INSTALL_BOUND = 600.0

_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""

# `process.argv` is as Azurite expects it: the program, the file, the arguments.
_AZURITE = "process.stdin.resume().on('end', () => process.exit(0)); require(process.argv[1])"


class Unavailable(Exception):
    """A server cannot run on this machine; the text says why."""


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """`host:port` of an S3 server of its own. Any credentials do, until a test asks it to check them."""
    with _running([sys.executable, "-c", _MOTO]) as host:
        yield host


@contextlib.contextmanager
def azure_server() -> Iterator[str]:
    """`host:port` of a blob server of its own that keeps everything in memory; raises `Unavailable`."""
    main = _azurite()
    options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck"]
    node = str(shutil.which("node"))
    with _running([node, "-e", _AZURITE, str(main), *options, "--disableTelemetry"]) as host:
        yield host


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[str]:
    """Runs a server; gives the `host:port` of the first URL that it prints."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdin is not None
    assert process.stdout is not None
    # A server that logs must never wait for a reader.
    drain = threading.Thread(target=_drain, args=(process.stdout.fileno(),), daemon=True)
    try:
        address = _address(process.stdout.fileno(), command[0])
        drain.start()
        yield address
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=_END_BOUND)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if drain.ident:
            drain.join()
        process.stdout.close()


def _drain(output: int) -> None:
    while os.read(output, 1 << 16):
        pass


def _address(output: int, program: str) -> str:
    said = b""
    while not (found := re.search(rb"http://([\d.]+:\d+)", said)):
        ready, _, _ = select.select([output], [], [], _START_BOUND)
        part = os.read(output, 4096) if ready else b""
        said += part
        if not part:
            raise RuntimeError(f"the server of {program} did not start; it said: {said.decode(errors='replace')}")
    return found.group(1).decode()


def _azurite() -> Path:
    """Azurite's blob server, installed into the cache if need be."""
    npm = shutil.which("npm")
    if not npm or not shutil.which("node"):
        raise Unavailable("Azurite needs node and npm on the PATH")
    folder = CACHE / "azurite" / AZURITE_VERSION
    main = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if main.exists():
            return main
        # Installed beside its place and moved there whole: an interrupted installation starts over.
        fresh = folder.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        install = [npm, "install", "--prefix", str(fresh), "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(
                [*install, f"azurite@{AZURITE_VERSION}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_INSTALL_BOUND,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"npm did not install azurite within {_INSTALL_BOUND:.0f} s") from None
        if done.returncode != 0:
            raise Unavailable(f"npm cannot install azurite: {' '.join(done.stderr.split())[-300:]}")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return main


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections and that no other process can bind meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        yield taken.getsockname()[1]


def server_tls(folder: Path) -> ssl.SSLContext:
    """TLS for a test server at 127.0.0.1, with a self-signed certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
