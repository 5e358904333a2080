"""The aggregate functions without Spark: the core's table, the builders, results on an embedded state, exports.

Owns: that builders and table agree, results against plain Python.
Does not own: equality with Spark (`tests/spark/test_functions_equal_to_spark.py`).
"""

from __future__ import annotations

import decimal
import functools
import inspect
import json
import math
import operator
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fastchangelog as fc
from fastchangelog import _internal, functions
from fastchangelog.function_table import FUNCTIONS, NAMES

TABLE = {function.name: function for function in FUNCTIONS.values()}
BUILDERS = [name for name in functions.__all__ if name != "Aggregate"]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_takes_what_the_table_says(name: str) -> None:
    builder = getattr(functions, name)
    made = builder(*["x"] * max(1, len(FUNCTIONS[name].arguments)))
    assert FUNCTIONS[made.fn].name == FUNCTIONS[name].name
    parameters = inspect.signature(builder).parameters
    columns = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert FUNCTIONS[name].takes(len(columns))
    assert ("ignorenulls" in parameters) == FUNCTIONS[name].ignores_nulls
    assert getattr(fc, name) is builder


def test_every_function_of_the_table_has_a_builder_and_a_meaning() -> None:
    assert set(TABLE) <= set(BUILDERS)
    assert all(function.doc and function.result for function in TABLE.values())
    names = [name for function in TABLE.values() for name in (function.name, *function.aliases)]
    assert len(names) == len(set(names)), "a name stands for one function"


def test_an_unknown_function_is_refused_with_all_names() -> None:
    with fc.open_state("memory://functions/unknown") as st:
        call = json.dumps(
            [
                {
                    "fn": "hll_sketch_agg",
                    "args": ["value"],
                    "where": None,
                    "identity": "hll_sketch_agg(value)",
                    "ignore_nulls": False,
                    "name": None,
                }
            ]
        )
        with pytest.raises(fc.InvalidArgumentError, match="`hll_sketch_agg` is not known; known are") as error:
            schema = pa.schema([pa.field("key", pa.int64()), pa.field("rows", pa.int64())])
            _internal.AggregatingState(st._native, "m", schema, call, True)
        assert all(name in str(error.value) for name in NAMES.split(", "))


def moments(values: list[float]) -> dict[str, float | None]:
    n = len(values)
    mean = math.fsum(values) / n if n else 0.0
    m2, m3, m4 = (math.fsum((v - mean) ** p for v in values) for p in (2, 3, 4))
    return {
        "var_pop": m2 / n if n else None,
        "var_samp": m2 / (n - 1) if n > 1 else None,
        "stddev_pop": math.sqrt(m2 / n) if n else None,
        "stddev_samp": math.sqrt(m2 / (n - 1)) if n > 1 else None,
        "skewness": math.sqrt(n) * m3 / m2**1.5 if m2 else None,
        "kurtosis": n * m4 / m2**2 - 3 if m2 else None,
    }


def joint(pairs: list[tuple[float, float]]) -> dict[str, float | None]:
    n = len(pairs)
    x, y = (math.fsum(p[i] for p in pairs) / n if n else 0.0 for i in (0, 1))
    xy = math.fsum((a - x) * (b - y) for a, b in pairs)
    xx, yy = math.fsum((a - x) ** 2 for a, _ in pairs), math.fsum((b - y) ** 2 for _, b in pairs)
    return {
        "covar_pop": xy / n if n else None,
        "covar_samp": xy / (n - 1) if n > 1 else None,
        "corr": xy / math.sqrt(xx * yy) if n > 1 and xx and yy else None,
    }


def bits(values: list[int]) -> dict[str, int | None]:
    by: dict[str, Callable[[int, int], int]] = {
        "bit_and": operator.and_,
        "bit_or": operator.or_,
        "bit_xor": operator.xor,
    }
    return {name: functools.reduce(call, values) if values else None for name, call in by.items()}


def test_results_are_those_of_the_definitions(tmp_path: Any) -> None:
    rng = random.Random(68)
    rows: list[tuple[str, dict[str, Any]]] = []
    for _ in range(400):
        row = {
            "x": rng.choice([None, rng.uniform(-10, 10)]),
            "y": rng.choice([None, rng.uniform(-10, 10)]),
            "i": rng.choice([None, rng.randrange(-(2**31), 2**31)]),
            "d": rng.choice([None, decimal.Decimal(rng.randrange(-(10**6), 10**6)) / 100]),
            "b": rng.choice([None, True, False]),
        }
        rows.append((rng.choice("abcde"), row))
    rows.append(("one", {"x": 1.5, "y": 2.5, "i": 7, "d": decimal.Decimal("1.25"), "b": True}))
    rows.append(("none", dict.fromkeys("xyidb")))
    one = ("var_samp", "var_pop", "stddev_samp", "stddev_pop", "skewness", "kurtosis")
    two = ("covar_samp", "covar_pop", "corr")
    of = {f"{name}_x": getattr(fc, name)("x") for name in one}
    of |= {f"{name}_d": getattr(fc, name)("d") for name in one}
    of |= {name: getattr(fc, name)("x", "y") for name in two}
    of |= {name: getattr(fc, name)("i") for name in ("bit_and", "bit_or", "bit_xor")}
    of |= {"product": fc.product("x", where="x > 9"), "count_if": fc.count_if("b"), "any": fc.any_value("i")}
    of |= {"some": fc.any_value("i", ignorenulls=True), "where": fc.stddev("x", where="y > 0")}
    value = "x double, y double, i int, d decimal(10,2), b boolean"

    for start in range(0, len(rows), 41):
        with fc.open_state(str(tmp_path / "state")) as st:  # opened again: rows are stored, read back and joined
            state = st.aggregating_state("s", key="string", value=value, **of)
            part = rows[start : start + 41]
            state.add_many([key for key, _ in part], [row for _, row in part])
    with fc.open_state(str(tmp_path / "state")) as st:
        found = dict(st.aggregating_state("s", key="string", value=value, **of).items())

    for key in {key for key, _ in rows}:
        mine = [row for k, row in rows if k == key]
        column = {name: [row[name] for row in mine if row[name] is not None] for name in "xyidb"}
        big = [x for x in column["x"] if x > 9]
        expected: dict[str, Any] = {f"{name}_x": v for name, v in moments(column["x"]).items()}
        expected |= {f"{name}_d": v for name, v in moments([float(d) for d in column["d"]]).items()}
        expected |= joint([(r["x"], r["y"]) for r in mine if r["x"] is not None and r["y"] is not None])
        expected |= bits(column["i"])
        expected |= {"product": math.prod(big) if big else None, "count_if": sum(column["b"])}
        expected |= {"any": mine[0]["i"], "some": column["i"][0] if column["i"] else None}
        expected |= {
            "where": moments([r["x"] for r in mine if r["x"] is not None and (r["y"] or 0) > 0])["stddev_samp"]
        }
        assert found[key].keys() == expected.keys()
        for name, wanted in expected.items():
            got = found[key][name]
            same = got == wanted or (
                isinstance(wanted, float) and got is not None and math.isclose(got, wanted, rel_tol=1e-11)
            )
            assert same, (key, name, got, wanted)


def test_an_alias_is_the_same_state(tmp_path: Any) -> None:
    declared = {"key": "string", "value": "x double, y double"}
    with fc.open_state(str(tmp_path / "state")) as st:
        state = st.aggregating_state("s", fc.stddev("x"), fc.variance("x"), fc.any_value("y"), **declared)
        state.add_many(["a", "a"], [(1.0, 5.0), (3.0, 6.0)])
        assert state["a"] == {"stddev(x)": math.sqrt(2), "variance(x)": 2.0, "any_value(y)": 5.0}
    with fc.open_state(str(tmp_path / "state")) as st:
        state = st.aggregating_state("s", fc.var_samp("x"), fc.std("x"), fc.first("y"), **declared)
        assert state["a"] == {"var_samp(x)": 2.0, "std(x)": math.sqrt(2), "first(y)": 5.0}


def test_a_division_by_zero_is_an_error_with_ansi(tmp_path: Any) -> None:
    tiny = [1e-100, 3e-100, 0.0]
    declared = {"key": "string", "value": "double"}
    with fc.open_state(str(tmp_path / "state")) as st:
        state = st.aggregating_state("ansi", fc.kurtosis("value"), **declared)
        state.add_many(["a"] * 3, tiny)
        with pytest.raises(fc.InvalidArgumentError, match=r"\[DIVIDE_BY_ZERO\].*kurtosis\(value\)"):
            state.get("a")
        state = st.aggregating_state("null", fc.kurtosis("value"), ansi=False, **declared)
        state.add_many(["a"] * 3, tiny)
        assert state["a"] is None


TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(10, 2),
    pa.string(),
    pa.date32(),
]


@pytest.mark.parametrize("name", sorted(TABLE))
def test_an_export_reads_rows_of_every_function_back(name: str) -> None:
    pytest.importorskip("pyspark")
    from fastchangelog.spark.aggregates.spec import AggregateSpec, calls_json, spec_json
    from fastchangelog.spark.aggregates.stored import stored_spec

    exported = 0
    for dtype in TYPES:
        count = len(TABLE[name].arguments)
        columns = pa.schema([pa.field("k", pa.string()), *(pa.field(f"v{i}", dtype) for i in range(count))])
        call = [AggregateSpec(name, tuple(range(1, count + 1)), None, False, True, f"{name}(v)")]
        try:
            result = _internal.aggregate_results(columns, calls_json(call))
        except fc.InvalidArgumentError:
            continue  # the function does not take the type
        text = spec_json(1, columns, pa.schema([columns.field(0), *result]), call)
        described = json.loads(_internal.spec_schema(text)[1])
        again, schema = stored_spec(described)
        assert _internal.spec_schema(again) == _internal.spec_schema(text)
        assert schema.field(1).type == result.field(0).type
        exported += 1
    assert exported
