"""The text endpoint of metrics, as tests read it.

Owns: a request, a free port, the samples of an answer by series. Does not own: what they are (`test_metrics`).
"""

from __future__ import annotations

import re
import socket
import urllib.request

__all__ = ["free_port", "parsed", "scrape"]

_BOUND = 60


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_BOUND) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(answer.read().decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_LABEL = r'\w+="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"([a-z_0-9]+)(\{{{_LABEL}(?:,{_LABEL})*\}})? (\d+)")


def parsed(text: str) -> dict[str, int]:
    """The samples by series. Fails on a line that is not of the format, and on a sample without its type."""
    samples: dict[str, int] = {}
    types: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, types[name] = line.split(" ")
        elif not line.startswith("# HELP "):
            found = _SAMPLE.fullmatch(line)
            assert found is not None, line
            assert {found[1], found[1].removesuffix("_sum"), found[1].removesuffix("_count")} & set(types), line
            assert found[1] + (found[2] or "") not in samples, line
            samples[found[1] + (found[2] or "")] = int(found[3])
    assert text.endswith("\n")
    return samples
