"""The public names: what programs may rely on, as signatures and documentation.

Owns: names, signatures and the parts of docstrings. Does not own: what the names do (each has tests of its own).
"""

from __future__ import annotations

import builtins
import inspect
import typing
from collections.abc import Mapping, MutableMapping
from typing import Any

import pytest

import fastchangelog as fc
import fastchangelog.materialization
import fastchangelog.types
from fastchangelog import functions

SIGNATURES = {
    "open_state": "uri, *, name='default', handle=None, start_from=None, read_only=False, create=True, "
    "materialization=None, options=None, storage_options=None, clock=None",
    "State.value_state": "self, name, key, value, *, ttl=None",
    "State.map_state": "self, name, key, map_key, value, *, ttl=None",
    "State.list_state": "self, name, key, value, *, ttl=None",
    "State.timers": "self, name, key",
    "TimerState.register_many": "self, keys, times",
    "TimerState.delete_many": "self, keys, times",
    "TimerState.due": "self, until, *, batch_size=65536",
    "State.checkpoint": "self",
    "State.begin_checkpoint": "self",
    "State.savepoint": "self, uri, format='canonical', *, storage_options=None",
    "State.close": "self, *, checkpoint=True",
    "ValueState.get": "self, key, default=None",
    "ValueState.put": "self, key, value",
    "ValueState.delete": "self, key",
    "ValueState.get_many": "self, keys",
    "ValueState.put_many": "self, keys, values",
    "ValueState.delete_many": "self, keys",
    "ValueState.scan": "self, *, start=None, end=None, prefix=None, batch_size=65536",
    "ChangelogStorage.__init__": "self, uri, *, options=None, storage_options=None, cache_dir=None",
    "ChangelogStorage.writer": "self, name, key_groups",
    "ChangelogStorage.reader": "self, cache_dir=None",
    "ChangelogReader.read": "self, handle, key_groups=None",
    "ChangelogReader.read_batches": "self, handle, key_groups=None",
    "ChangelogWriter.append_batch": "self, groups, values",
    "ChangelogWriter.persist": "self, from_sequence_number, checkpoint_id",
    "ChangelogWriter.confirm": "self, from_sequence_number, to_sequence_number, checkpoint_id",
    "ChangelogWriter.reset": "self, from_sequence_number, to_sequence_number, checkpoint_id",
    "ChangelogWriter.truncate": "self, to_sequence_number",
    "ChangelogWriter.truncate_and_close": "self, from_sequence_number",
    "functions.count": "col=None, *, where=None",
    "functions.sum": "col, *, where=None",
    "functions.first": "col, *, ignorenulls=False, where=None",
    "functions.max_by": "col, ord, *, where=None",
    "materialization.PeriodicMaterializer.follow": "self, policy",
}


def found(name: str) -> Any:
    value: Any = fc
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(found(name)).parameters.values()]
    assert str(inspect.Signature(parameters)).strip("()") == SIGNATURES[name]


def test_signatures_of_spark() -> None:
    pytest.importorskip("pyspark")

    def shown(function: Any) -> str:
        parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
        return str(inspect.Signature(parameters))

    assert fc.spark.GroupedStream.agg  # what is taken first does not replace what is taken later
    assert shown(fc.spark.accelerate) == (
        "(spark, state=None, operators='auto', enabled=True, *, materialization=None, options=None, "
        "storage_options=None)"
    )
    assert shown(fc.spark.grouped) == (
        "(df, *keys, state=None, name='default', output_mode='update', ttl=None, start_from=None, "
        "materialization=None, options=None, storage_options=None)"
    )
    assert shown(fc.spark.explain_error) == "(exc)"
    assert shown(fc.spark.GroupedStream.agg) == "(self, *exprs, initial_state=None, **named)"
    assert shown(fc.spark.import_state) == "(checkpoint, operator=None, *, batch=None, variables=None)"


def test_a_star_import_shadows_no_builtin() -> None:
    names: dict[str, object] = {}
    exec("from fastchangelog import *", names)
    assert [name for name in names if hasattr(builtins, name) and name != "__builtins__"] == []
    assert names["functions"] is functions
    assert repr(fc.sum("x")) == repr(functions.sum("x"))


def test_all_names_exist() -> None:
    for module in (fc, functions, fc.errors, fastchangelog.materialization, fastchangelog.types):
        for name in module.__all__:
            assert getattr(module, name) is not None, name
    with pytest.raises(AttributeError):
        fc.nothing  # type: ignore[attr-defined]


def test_what_programs_catch_and_annotate_has_a_name() -> None:
    assert set(fc.errors.__all__) <= set(fc.__all__)
    assert {
        cls.__name__
        for cls in vars(fc.errors).values()
        if isinstance(cls, type) and issubclass(cls, fc.FastChangelogError)
    } == set(fc.errors.__all__)
    for kind in ("value", "list", "map", "aggregating"):
        assert inspect.signature(getattr(fc.Context, f"{kind}_state")).return_annotation in fc.__all__


def test_kinds_of_collections() -> None:
    assert issubclass(fc.ValueState, MutableMapping)
    assert issubclass(fc.AggregatingState, Mapping)
    assert typing.get_args(fastchangelog.types.SavepointFormat) == ("canonical", "native")


def documented() -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    names = [*(f"{name}" for name in fc.__all__), *(f"functions.{name}" for name in functions.__all__)]
    for name in names:
        value = found(name)
        if inspect.ismodule(value) or isinstance(value, str):
            continue
        out.append((name, value))
        if inspect.isclass(value) and not issubclass(value, Exception):
            for member, inner in inspect.getmembers(value):
                ours = getattr(inner, "__module__", "") or ""
                if not member.startswith("_") and callable(inner) and ours.startswith("fastchangelog."):
                    out.append((f"{name}.{member}", inner))
    return out


@pytest.mark.parametrize(("name", "value"), documented(), ids=[name for name, _ in documented()])
def test_docstrings_have_their_parts(name: str, value: Any) -> None:
    text = value.__doc__ or ""
    assert text, name
    if inspect.isclass(value):
        if issubclass(value, Exception):
            assert value is fc.FastChangelogError or "What to do:" in text
        else:
            assert "Example" in text
        return
    signature = inspect.signature(value)
    parameters = [p for p in signature.parameters if p != "self"]
    if name.split(".")[-1] in ("keys", "values", "items", "close"):  # as of a mapping, of a file
        return
    if name.startswith("MaterializationPolicy.") or name.endswith(".bind"):  # the loop calls them, and the context
        return
    assert "Example" in text
    if parameters:
        assert "Args:" in text
        missing = [p for p in parameters if f"{p}:" not in text]
        assert missing == []
    if signature.return_annotation not in ("None", None, inspect.Signature.empty):
        assert "Returns:" in text
