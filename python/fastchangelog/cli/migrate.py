"""`fastchangelog migrate`: what moving a Spark query over would import, and the lines that change.

Owns: the command and its layout. Does not own: the description (`spark.reading.migration`).
"""

from __future__ import annotations

import argparse
from typing import Any

from fastchangelog.cli.arguments import add_conf, pairs
from fastchangelog.cli.output import FOUND, OK, print_json, print_table, status_line
from fastchangelog.cli.spark_session import on_demand
from fastchangelog.hidden import Hidden

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """The arguments of the command."""
    parser = commands.add_parser(
        "migrate",
        help="show what a Spark query's state would bring along, and the lines to change",
        description="Reads the checkpoint of a query of Spark's own groupBy().agg() or transformWithState: operators, "
        "state variables, schemas, counts, and where its sources are. What cannot be imported is named, with the "
        "reason. Nothing is written. Exit code 1 if nothing can be imported.",
    )
    parser.add_argument("checkpoint", help="the query's checkpointLocation")
    parser.add_argument("--batch", type=int, help="by default the newest that committed")
    add_conf(parser)
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from fastchangelog.spark.reading.migration import describe

    with on_demand(Hidden(pairs("--conf", args.conf)), "migrate", status_line(args)) as session:
        said = describe(session(), args.checkpoint, args.batch)
    found = any(operator["imported"] for operator in said["operators"])
    if args.json:
        print_json(said)
    else:
        _print(said)
    return OK if found else FOUND


def _print(said: dict[str, Any]) -> None:
    print(f"{said['checkpoint']}: batch {said['batch']}, watermark {said['watermark_ms']} ms")
    for operator in said["operators"]:
        what = f"operator {operator['operator']}: {operator['name']}"
        if operator["kind"] == "fastchangelog":
            print(f"{what}, of fastchangelog already")
        elif not operator["imported"]:
            print(f"{what}, cannot be imported")
            for reason in operator["reasons"]:
                print(f"  {reason}")
        elif operator["kind"] == "aggregate":
            print(f"{what}, {operator['rows']} keys")
            print_table([["  key", operator["key"]], ["  kept", operator["value"]]])
        elif operator["kind"] == "distinct":
            print(f"{what}, {operator['rows']} keys")
            print_table([["  key", operator["key"]]])
        else:
            print(f"{what}, time mode {operator['time_mode']}, output mode {operator['output_mode']}")
            rows = [
                [f"  {v['name']}", v["kind"] + (" with TTL" if v["ttl"] else ""), f"{v['rows']} rows", v["schema"]]
                for v in operator["variables"]
            ]
            rows += [["  timers", "", f"{operator['timers']} rows", ""]] if operator["timers"] else []
            print_table([["  key", "", "", operator.get("key", "")], *rows])
    for source in said["sources"]:
        print(f"source ({source['source']}) at {source['offset']}")
        print(f"  {source['go_on']}")
    print("the lines that change:" if said["lines"] else "nothing of this query can be imported")
    for line in said["lines"]:
        print(f"  {line}")
