"""The session's time zone, as Python and Arrow know it.

Owns: from the text of Spark's setting to a zone of Python, and to the local times of an Arrow column.
Does not own: where timestamps are converted (`columns`, `values`, `processor.frames`).

Spark takes what Java takes: regions, offsets with and without `UTC`, `GMT` or `UT`, `Z`, and short names such as `PST`.
Python and Arrow know the regions and few of the others. A zone is looked up where a timestamp is converted, and nowhere
else: what has no timestamps needs none.
"""

from __future__ import annotations

import datetime
import functools
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fastchangelog.errors import InvalidArgumentError

__all__ = ["local_times", "pandas_zone", "zone_of"]

_SETTING = "spark.sql.session.timeZone"
#: Java's names of three letters, with what they are. Python has others of the kind itself.
_SHORT = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "EST": "-05:00", "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
_UTC = ("Z", "UTC", "GMT", "UT")
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{1,2})(?::(\d\d))?|(\d\d)(\d\d)?)?")
_LONGEST_OFFSET = datetime.timedelta(hours=18)


@functools.lru_cache(maxsize=64)
def zone_of(text: str) -> datetime.tzinfo:
    """The zone that Spark means by a text.

    >>> zone_of("UTC+8"), zone_of("+05:30:10"), zone_of("Z")
    (datetime.timezone(datetime.timedelta(seconds=28800)), \
datetime.timezone(datetime.timedelta(seconds=19810)), datetime.timezone.utc)
    >>> str(zone_of("PST")), str(zone_of("Europe/Berlin"))
    ('America/Los_Angeles', 'Europe/Berlin')
    """
    known = _known(text)
    if known is not None:
        return known
    if text in _UTC:
        return datetime.timezone.utc
    offset = _offset(text)
    if offset is not None:
        return datetime.timezone(offset)
    region = _SHORT.get(text)
    if region is not None:
        return zone_of(region)
    raise InvalidArgumentError(
        f"{_SETTING} is {text!r}, which Python's zones (tzdata) do not have: set it to a region such as Europe/Berlin, "
        "or to an offset such as +01:00"
    )


@functools.lru_cache(maxsize=64)
def pandas_zone(text: str) -> Any:
    """What pandas takes for the zone: the text of a zone that it knows, by whose rules PySpark takes it too."""
    return text if _known(text) is not None else zone_of(text)


def local_times(array: pa.Array, text: str) -> pa.Array:
    """Timestamps as the clocks of the zone have them, without a zone."""
    zone = zone_of(text)
    offset = zone.utcoffset(None)
    if offset is not None:
        plain = array.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        return pc.add(plain, pa.scalar(offset, pa.duration("us")))
    return pc.local_timestamp(array.cast(pa.timestamp("us", str(zone))))


def _known(text: str) -> datetime.tzinfo | None:
    """The zone of a text that Arrow, and so PySpark, knows."""
    try:
        found: datetime.tzinfo = pa.lib.string_to_tzinfo(text)
    except Exception:  # each library of zones has errors of its own
        return None
    return found


def _offset(text: str) -> datetime.timedelta | None:
    found = _OFFSET.fullmatch(text)
    if found is None:
        return None
    sign, hours, *rest = found.groups()
    minutes, seconds = (int(rest[0] or rest[2] or 0), int(rest[1] or rest[3] or 0))
    offset = datetime.timedelta(hours=int(hours), minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > _LONGEST_OFFSET:
        return None
    return -offset if sign == "-" else offset
