"""Values of every type of Spark's, edges included.

Owns: the values. Does not own: which of them a test draws.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

D = decimal.Decimal
UTC = dt.timezone.utc
NAN, INF = math.nan, math.inf

#: type -> values, edges included; None is added to each.
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 0, 1, 127],
    "smallint": [-32768, 0, 7, 32767],
    "int": [-(2**31), 0, 5, 2**31 - 1],
    "bigint": [-(2**52), 0, 9, 2**52],
    "float": [0.0, -0.0, 1.5, -2.25, NAN, INF],
    "double": [0.0, -0.0, 0.5, -1024.125, NAN, -INF],
    "decimal(9,2)": [D("0.00"), D("-1234567.89"), D("9999999.99")],
    "decimal(20,5)": [D("0.00001"), D("-123456789012345.67891"), D("999999999999999.99999")],
    "decimal(38,10)": [D("0.0000000001"), D("-1234567890123456789.0123456789")],
    "string": ["", "a", "ä", "日本語", "a\0b", "😀 long enough to not be inline", "Z"],
    "binary": [b"", b"\x00", b"\xff\xfe", b"abc"],
    "date": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        dt.datetime(2024, 3, 10, 7, 30, 0, 1, tzinfo=UTC),
        dt.datetime(2024, 11, 3, 5, 30, tzinfo=UTC),
        dt.datetime(2024, 11, 3, 6, 30, tzinfo=UTC),
    ],
    "timestamp_ntz": [dt.datetime(1900, 1, 1), dt.datetime(2024, 3, 10, 2, 30), dt.datetime(9999, 12, 31, 23, 59)],
    "interval day to second": [dt.timedelta(0), dt.timedelta(days=-3, microseconds=5), dt.timedelta(seconds=1)],
    "array<int>": [[], [1], [1, None], [2, 1]],
    "array<string>": [[], ["a"], [None], ["a", "b"]],
    "struct<a:int,b:string>": [(1, "x"), (1, None), (None, "x"), (0, "")],
    "struct<t:timestamp,d:double>": [(dt.datetime(2020, 1, 1, tzinfo=UTC), 0.0), (None, -0.0), (None, NAN)],
    "array<struct<a:array<double>>>": [[], [([0.0],)], [([-0.0],)], [([NAN],), None]],
    # No null among numbers: Spark 4.3's own groupBy reads such a null in a map key as 0.
    "map<string,int>": [{}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "map<string,string>": [{}, {"a": "x"}, {"a": None}, {"a": "x", "b": None}, {"b": None, "a": "x"}],
    "map<int,array<map<string,double>>>": [{}, {1: [{"x": 0.5, "y": 1.0}]}, {1: [{"y": 1.0, "x": 0.5}]}],
}
