"""Arguments that several commands have.

Owns: their names, and the objects made from them. Does not own: the work of a command.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fastchangelog.cli.output import status_line
from fastchangelog.errors import InvalidArgumentError
from fastchangelog.hidden import Hidden, show, unseen

if TYPE_CHECKING:
    from fastchangelog import _internal
    from fastchangelog.savepoints.source import StateSource

__all__ = ["add_batch", "add_conf", "add_store", "object_folder", "pairs", "state_source"]


def add_store(parser: argparse.ArgumentParser, store: str = "the store") -> None:
    """--storage-option and --json."""
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        type=Hidden,
        metavar="NAME=VALUE",
        help=f"of {store} (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="for machines")


def add_conf(parser: argparse.ArgumentParser) -> None:
    """--conf."""
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=Hidden,
        metavar="NAME=VALUE",
        help="of the Spark session (repeatable)",
    )


def add_batch(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose a batch of a checkpoint, and those of `add_store`."""
    parser.add_argument("--name", help="the name= of grouped(), if the query has several")
    parser.add_argument("--batch", type=int, help="by default the newest that committed")
    add_conf(parser)
    add_store(parser)


@unseen
def pairs(option: str, given: Sequence[str | Hidden[str]]) -> dict[str, str]:
    """The values of a NAME=VALUE option.

    >>> pairs("--conf", ["spark.ui.enabled=false"])
    {'spark.ui.enabled': 'false'}
    """
    texts = [show(text) for text in given]
    for text in texts:
        if not text.partition("=")[0].strip() or "=" not in text:
            raise InvalidArgumentError(f"{option} takes NAME=VALUE")
    return {name.strip(): value for name, _, value in (text.partition("=") for text in texts)}


def state_source(args: argparse.Namespace) -> StateSource:
    """The batch and the state that the arguments name; Spark is started when it is first needed."""
    from fastchangelog.cli.spark_session import on_demand
    from fastchangelog.savepoints.source import StateSource

    conf = Hidden(pairs("--conf", getattr(args, "conf", [])))
    return StateSource(
        checkpoint=getattr(args, "checkpoint", None) or "",
        root=getattr(args, "state", None) or args.uri,
        name=getattr(args, "name", None),
        batch=getattr(args, "batch", None),
        storage_options=pairs("--storage-option", args.storage_option),
        conf=conf.show(),
        session=partial(on_demand, conf, "savepoint", status_line(args)),
    )


def object_folder(args: argparse.Namespace) -> _internal.ObjectFolder:
    """The folder at the argument `uri`, which must exist."""
    from fastchangelog import _internal
    from fastchangelog.options import existing_folder, gather_storage_options

    uri = existing_folder(args.uri)
    return _internal.ObjectFolder(uri, {}, gather_storage_options(uri, pairs("--storage-option", args.storage_option)))
