"""A campaign: Spark jobs are killed and disturbed at random, hundreds of times, and everything they leave is judged.

    make campaign                                      500 kills, 50 of them of JVMs
    make campaign ARGS="--kills 100 --jvms 10 --seed 7"
    make campaign ARGS="--seed 7 --only 3 --keep"      round 3 of that campaign again, by its plan

Every decision follows from the seed. A second run with the same seed and numbers takes the same decisions; which line
of the job they meet depends on the machine, so a finding may need several runs to come again.

Exit code 0: nothing found. 1: something was. 2: it could not run. Ctrl-C ends all processes and prints the counts.

Owns: the command line, rounds until it is enough, the end. Does not own: a round (`round`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.kills.campaign.plan import TASK_POINTS

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

#: Bytes of the folder's path: the sockets of the state servers are below it.
_LONGEST = 60
CLEAN, FOUND, COULD_NOT_RUN = 0, 1, 2


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "make campaign", description="Kills and disturbs a Spark job at random, and judges everything it leaves."
    )
    whole = {"type": int, "metavar": "N"}
    parser.add_argument("--seed", **whole, help="of all decisions (default: a random one, which is printed)")
    parser.add_argument("--kills", default=500, **whole, help="end after so many kills (500)")
    parser.add_argument("--jvms", **whole, help="so many of them at JVMs (a tenth)")
    parser.add_argument("--rounds", **whole, help="end after so many rounds, whatever the kills")
    parser.add_argument("--strikes", default=40, **whole, help="strikes of a round (40); the plan depends on it")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin nothing new after so many minutes")
    parser.add_argument(
        "--queries",
        choices=("all", *TASK_POINTS),
        default="all",
        help="what the rounds run; all: in turns (%(default)s)",
    )
    parser.add_argument("--only", **whole, help="only this round of the plan")
    parser.add_argument("--master", default="local-cluster[2,1,1024]", help="the job's master (%(default)s)")
    parser.add_argument("--patience", type=float, default=300.0, metavar="S", help="seconds without an answer (300)")
    parser.add_argument("--folder", type=Path, help="where the rounds' files go (default: a new temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep the files of rounds without findings, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all counts and findings there as JSON")
    asked = parser.parse_args(argv)
    asked.jvms = max(1, asked.kills // 10) if asked.jvms is None else asked.jvms
    asked.seed = random.SystemRandom().randrange(1 << 32) if asked.seed is None else asked.seed
    if not 0 <= asked.jvms <= asked.kills or asked.strikes < 1 or asked.kills < 1:
        parser.error("--jvms is at most --kills, and --kills and --strikes are at least 1")
    return asked


def main(argv: list[str] | None = None) -> int:
    """Runs a campaign."""
    asked = parse(argv)
    try:
        import pyspark  # noqa: F401

        from support.kills.campaign.report import Tally
        from support.kills.campaign.store import Outside

        folder = asked.folder.absolute() if asked.folder else Path(tempfile.mkdtemp(prefix="fcl-campaign-"))
        folder.mkdir(parents=True, exist_ok=True)
        if len(os.fsencode(folder)) > _LONGEST or any(folder.iterdir()):
            raise ValueError(f"{folder} must be empty and of {_LONGEST} bytes at most; name another with --folder")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        outside = Outside(folder)
    except KeyboardInterrupt:
        return COULD_NOT_RUN
    except Exception as error:
        print(f"the campaign cannot run: {type(error).__name__}: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    tally, began, how = Tally(), time.monotonic(), "done"
    print(f"seed {asked.seed}; files are in {folder}", flush=True)
    try:
        _rounds(asked, folder, outside, tally, began)
    except KeyboardInterrupt:
        how = "interrupted"
    except Exception as error:
        how = f"broken off: {type(error).__name__}: {error}"
        print(how, file=sys.stderr)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the second Ctrl-C must not break the table
        outside.close()
    shutil.rmtree(folder / "spark", ignore_errors=True)
    seconds = time.monotonic() - began
    print("", *tally.lines(), "", sep="\n")
    print(f"{how} after {seconds / 60:.1f} min: {tally.total} kills ({tally.jvms} of JVMs), "
          f"{sum(tally.faults.values())} faults, {len(tally.findings)} findings; seed {asked.seed}")  # fmt: skip
    if asked.json is not None:
        told = {"seed": asked.seed, "seconds": round(seconds), "how": how, "total": tally.total, "jvms": tally.jvms}
        asked.json.write_text(json.dumps(tally.to_dict(**told), indent=2) + "\n")
    if tally.findings:
        return FOUND
    if not asked.keep and asked.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return COULD_NOT_RUN if how.startswith("broken") else CLEAN


def _rounds(asked: argparse.Namespace, folder: Path, outside: Any, tally: Any, began: float) -> None:
    """Rounds until it is enough."""
    from support.kills.campaign.plan import plan_round
    from support.kills.campaign.round import Conductor
    from support.kills.campaign.run import CampaignRun

    def enough() -> bool:
        if asked.minutes is not None and time.monotonic() - began >= asked.minutes * 60:
            return True
        if asked.rounds is not None or asked.only is not None:
            return False
        return bool(tally.total >= asked.kills and tally.jvms >= asked.jvms)

    queries = tuple(TASK_POINTS) if asked.queries == "all" else (asked.queries,)
    cluster = asked.master.startswith("local-cluster")
    jvms = round(asked.strikes * asked.jvms / asked.kills) or (1 if asked.jvms else 0)
    number = 0 if asked.only is None else asked.only
    while not enough() and (asked.rounds is None or number < asked.rounds):
        plan = plan_round(asked.seed, number, asked.strikes, jvms, cluster, queries)

        def say(text: str, number: int = number) -> None:
            minutes = (time.monotonic() - began) / 60
            print(f"[{minutes:5.1f} min, {tally.total} kills] round {number}: {text}", flush=True)

        options = f"--kills {asked.kills} --jvms {asked.jvms} --strikes {asked.strikes} --master '{asked.master}'"
        options += f" --queries {asked.queries}"
        rerun = f'make campaign ARGS="--seed {asked.seed} --only {number} {options} --keep"'
        run = CampaignRun(folder / f"r{number}", plan, asked.master, asked.patience)
        say(f"{plan.kind}, {len(plan.steps)} steps, {plan.partitions} partitions, {plan.options}")
        conductor = Conductor(plan, run, outside, tally, say=say, enough=enough, rerun=rerun)
        conductor.go()
        tally.counts["rounds"] += 1
        if not conductor.found and not asked.keep:
            shutil.rmtree(run.folder, ignore_errors=True)
        if asked.only is not None:
            break
        number += 1


if __name__ == "__main__":
    raise SystemExit(main())
