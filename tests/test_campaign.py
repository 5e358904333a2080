"""The campaign's own checks can fail: each finds what it is for, and its plan follows from its seed.

Owns: a wrong answer, a lost and a leaked object, a leaked process, folder, socket and file, a crash, put there by hand;
the models. Does not own: campaigns (`make campaign`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastchangelog.demo import processes
from fastchangelog.layout import STARTS
from support.kills.aggregates import Model
from support.kills.answers import Trouble
from support.kills.campaign import checks
from support.kills.campaign import plan as campaign_plan
from support.kills.campaign.entries import ENTRIES
from support.kills.campaign.plan import Fault, Move, Restart, RollBack, Round, Savepoint, Strike, Sweep, plan_round
from support.kills.campaign.report import Finding, Tally
from support.kills.campaign.run import CampaignRun
from support.kills.campaign.store import difference
from support.kills.ledger import DELAY_SECONDS, OUTPUT, Ledger, LedgerModel
from support.kills.run import _identity
from support.processor_runs import Runner
from support.swept import Engine
from support.waiting import until

_TESTS = Path(__file__).resolve().parent
_PROGRAM = [sys.executable, "-m", "support.kills.campaign"]


@pytest.fixture
def kind() -> str:
    return "aggregates"


@pytest.fixture
def run(tmp_path: Path, kind: str) -> Iterator[CampaignRun]:
    """A query without a job: a test writes its answers, and stands in for its processes."""
    run = CampaignRun(tmp_path / "r0", Round(0, 7, 2, {}, (), kind), "local[2,4]", patience=5.0)
    yield run
    run.end()


def marked(run: CampaignRun, *line: str) -> subprocess.Popen[bytes]:
    """A process of the job; its environment shows a moment after it was started."""
    process = subprocess.Popen(line, env={**os.environ, processes.MARK: run._mark}, start_new_session=True)
    until("the process or its end", lambda: process.poll() is not None or run.living())
    return process


def write(run: CampaignRun, number: int, answer: list[Any]) -> None:
    new = run.folder / "new"
    new.write_text(json.dumps(answer))
    new.rename(run.folder / "out" / f"{number:06d}.json")


def server_log(run: CampaignRun, name: str, *events: str) -> Path:
    log = run.folder / "run" / "fcl-0" / name / "server.log"
    log.parent.mkdir(parents=True)
    lines = [{"event": event, "pid": 100 + i} for i, event in enumerate(events)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return log


@pytest.mark.parametrize("kind", ENTRIES)
def test_a_wrong_answer_is_found_also_when_written_again(run: CampaignRun) -> None:
    number = run.feed()
    while not (right := run.answers.expected[number]):
        number = run.feed()
    write(run, number, right)
    run.answers.compare_new()
    assert (run.answers.compared, run.answers.repeats) == (1, 0)
    write(run, number, right)
    run.answers.compare_new()
    assert (run.answers.compared, run.answers.repeats) == (1, 1)
    wrong = [list(row) for row in right]
    wrong[-1][-1] = "other"
    for answer in (wrong, right[1:], [*right, right[0]]):
        write(run, number, answer)
        with pytest.raises(Trouble, match=f"wrong: batch {number}") as found:
            run.answers.compare_new()
        assert found.value.kind == "wrong"


def test_the_model_computes_every_aggregate() -> None:
    model = Model(1)
    rows = [model.batch(20, 150) for _ in range(5)]
    for batch in rows:
        answer = {row[0]: row for row in model.apply(batch)}
    key = rows[-1][0][0]
    mine = [row for batch in rows for row in batch if row[0] == key]
    values = [v for _, v, *_ in mine if v is not None]
    texts = [t for *_, t, _ in mine if t is not None]
    amounts = [d for _, _, d, *_ in mine if d is not None]
    newest, oldest = max(mine, key=lambda row: row[4]), min(mine, key=lambda row: row[4])
    assert answer[key] == [
        key,
        len(mine),
        len(texts),
        sum(values),
        sum(values) / len(values),
        min(values),
        max(values),
        str(sum(amounts)),
        str(min(amounts)),
        str(max(amounts)),
        min(texts),
        max(texts),
        mine[0][3],
        mine[-1][3],
        texts[0],
        texts[-1],
        newest[3],
        oldest[3],
    ]
    (touches,) = model.touches()
    assert {row[0] for row in touches} == set(model.snapshot())


def test_the_model_of_the_processor_answers_as_the_processor() -> None:
    runner = Runner(Ledger, rows="v long, ts timestamp", output=OUTPUT, time_mode="eventtime")
    model, watermark, mark, fired = LedgerModel(3), 0, 0, 0
    for _ in range(12):
        rows = model.batch(6, 40)
        times = {row: round(row[2].timestamp()) * 1000 for row in rows if row[2] is not None}
        answer = [tuple(row) for row in model.apply(rows)]
        got = runner.batch([row for row in rows if times.get(row, mark + 1) > mark], watermark=watermark)
        assert sorted(got, key=repr) == sorted(answer, key=repr)
        fired += sum(row[1] is not None for row in answer)
        mark, watermark = watermark, max(watermark, max(times.values()) - DELAY_SECONDS * 1000)
    assert fired
    (touches,) = model.touches()
    assert {row[0] for row in touches} >= {name[1] for name in model.snapshot()}


def test_a_wrong_savepoint_is_found() -> None:
    wanted = {("total", "a"): (1, 2), ("$timers", None, 5): None}
    entries = list(wanted.items())
    assert difference(entries, wanted) == ""
    assert difference(entries[::-1], wanted) == ""
    assert difference([*entries, entries[0]], wanted) == "entries come twice"
    assert difference(entries[:1], wanted) == "('$timers', None, 5) is none, must be None; 1 entries differ"
    assert difference([(("total", "a"), (1, 3)), entries[1]], wanted).startswith("('total', 'a') is (1, 3), must be")


def test_a_job_that_ended_by_itself_is_found(run: CampaignRun) -> None:
    run._child = marked(run, "false")
    run._child.wait()
    with pytest.raises(Trouble, match=r"ended: .* code 1"):
        run.look()


def test_a_job_that_does_not_answer_is_found(run: CampaignRun) -> None:
    run._child = marked(run, "sleep", "60")
    run.feed()
    run.answers.progress = time.monotonic() - 6
    with pytest.raises(Trouble, match="stuck: no answer for 5 s"):
        run.look()


def test_a_leaked_process_is_found_and_ended(run: CampaignRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.kills.run.ORPHAN_PATIENCE", 0.2)
    run.expect_nothing_living()
    with marked(run, "sleep", "60") as process:
        with pytest.raises(Trouble, match=f"leaked: 1 processes outlive the job: .*{process.pid}: sleep 60"):
            run.expect_nothing_living()
        process.wait(30)  # by itself it would sleep for a minute
    orphan = marked(run, "sleep", "60")
    run._orphans[_identity(orphan.pid)] = 0.0
    with pytest.raises(Trouble, match=f"leaked: process {orphan.pid} outlives its executor"):
        run.look()
    run.end()
    orphan.wait()
    run.look()


def test_left_folders_sockets_and_files_are_found(run: CampaignRun) -> None:
    data = run.folder / "local" / "spark-1" / "blockmgr-1" / "fastchangelog-aa"
    data.mkdir(parents=True)
    assert checks.left_folders(run.folder, []) == [f"the data folder {data}"]
    assert checks.left_folders(run.folder, [data]) == []
    assert checks.left_by_ended_servers(run.folder) == [], "its server may have been killed"
    log = server_log(run, "aa", "started", "ending", "started")
    (log.parent / "s").touch()
    assert checks.left_by_ended_servers(run.folder) == [], "the second one did not end by itself"
    log.write_text(log.read_text() + '{"event": "ending"}\nno json\n')
    found = checks.left_by_ended_servers(run.folder)
    assert [text.split()[1] for text in found] == ["data", "socket"]
    assert checks.left_temporary(run.folder) == []
    (run.folder / "tmp" / "fastchangelog-x").touch()
    assert len(checks.left_temporary(run.folder)) == 1


def test_a_crash_and_an_internal_error_are_found(run: CampaignRun) -> None:
    log = server_log(run, "aa", "started", "ending", "started", "session")
    assert checks.crashes(run.folder, {102}) == []
    assert len(checks.crashes(run.folder, set())) == 1
    assert checks.internal_errors(run.folder) == []
    log.write_text("thread 'x' panicked at y.rs:1\n")
    assert len(checks.internal_errors(run.folder)) == 1


def test_a_lost_and_a_leaked_object_are_found(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir()
    engine = Engine(tmp_path / "server", root)
    try:
        handle, _ = engine.batch(0, None)
        engine.batch(1, handle, commit=False)  # the first one is live now
        engine.materialize()
        for number in range(1, 8):
            handle, _ = engine.batch(number, handle)
    finally:
        engine.stop()
    state = root / "query" / "default"
    assert checks.audit([state], [handle])[0] == []
    unreached = checks.audit([state], [handle])[1]
    for name in unreached:  # of former versions
        (state / name).unlink()
    assert checks.audit([state], [handle]) == ([], [])
    first = {"log", "base", "index"}
    kinds = {path.name for path in state.iterdir() if path.is_dir() and any(path.iterdir())}
    assert first < kinds, "the handle names one of each kind"
    for kind in sorted(kinds):
        path = next((state / kind).iterdir())
        name, data = f"{kind}/{path.name}", path.read_bytes()
        path.unlink()
        assert name in checks.audit([state], [handle])[0]
        path.write_bytes(data)
    (state / STARTS).mkdir(exist_ok=True)
    (state / STARTS / ("0" * 20)).write_bytes(b"")
    other = state / "log" / ("0" * 32)
    other.write_bytes(b"")
    assert checks.audit([state], [handle]) == ([], [f"log/{other.name}"])
    assert checks.audit([state], [handle], [f"log/{other.name}"]) == ([], [])


def test_the_plan_follows_from_the_seed() -> None:
    assert plan_round(1, 3, 40, 4) == plan_round(1, 3, 40, 4)
    assert plan_round(1, 3, 40, 4) != plan_round(2, 3, 40, 4)
    assert plan_round(1, 3, 40, 4) != plan_round(1, 4, 40, 4)
    steps = [step for number in range(200) for step in plan_round(1, number, 40, 4).steps]
    strikes = [step for step in steps if isinstance(step, Strike)]
    assert len(strikes) == 200 * 40
    assert sum(step.victims in [v for v, _ in campaign_plan.JVM_VICTIMS] for step in strikes) == 200 * 4
    everyone = campaign_plan.VICTIMS + campaign_plan.JVM_VICTIMS
    assert {step.victims for step in strikes} == {victims for victims, _ in everyone}
    assert {type(step) for step in steps} == {Strike, Fault, Sweep, Savepoint, Restart, RollBack, Move}
    faults = {(step.point, step.action) for step in steps if isinstance(step, Fault)}
    assert faults == {*campaign_plan.FAULTS, *campaign_plan.USER_FAULTS}
    assert {step.point for step in steps if isinstance(step, Strike | Move)} == {None, *_points()}
    kinds = [plan_round(1, number, 40, 4).kind for number in range(4)]
    assert kinds == ["aggregates", "processor", "windows", "aggregates"]
    assert list(campaign_plan.TASK_POINTS) == list(ENTRIES)
    for number in range(200):
        plan = plan_round(1, number, 40, 4)
        others = {point for points in campaign_plan.TASK_POINTS.values() for point in points}
        others -= set(campaign_plan.TASK_POINTS[plan.kind])
        assert not others & {step.point for step in plan.steps if isinstance(step, Strike | Fault)}
    only = plan_round(1, 0, 40, 4, queries=["processor"])
    assert only.kind == "processor"
    local = plan_round(1, 0, 40, 40, cluster=False).steps
    assert not any("executor" in step.victims for step in local if isinstance(step, Strike))


def _points() -> set[str]:
    plan = campaign_plan
    points = [
        *plan.TASK_POINTS.values(),
        plan.ALL_BACKGROUND_POINTS,
        plan.ALL_RESTORE_POINTS,
        plan.SINK_POINTS,
        plan.MOVE_POINTS,
    ]
    return {point for kind in points for point in kind}


def test_every_failpoint_is_in_the_plan_or_has_a_reason() -> None:
    root = _TESTS.parent
    call = re.compile(r'(?:failpoints|points)\s*\.hit\(\s*"([a-z.-]+)"|failpoint\("([a-z.-]+)"\)')
    sources = [p for folder in (*root.glob("rust/*/src"), root / "python") for p in folder.rglob("*.*")]
    told = [p for p in sources if p.suffix in (".rs", ".py") and not p.name.endswith(("tests.rs", "failpoint.rs"))]
    found = {name for p in told for pair in call.findall(p.read_text()) for name in pair if name}
    of_tests = {*campaign_plan.SINK_POINTS, *campaign_plan.USER_POINTS}
    assert found - _points() - set(campaign_plan.ELSEWHERE) == set()
    assert (_points() | set(campaign_plan.ELSEWHERE)) - found - of_tests == set(), "gone"


def test_the_table_shows_every_kill_and_every_finding() -> None:
    tally = Tally()
    tally.kills["worker", "operator.open"] += 3
    tally.kills["executor", "any moment"] += 2
    tally.processes.update({"worker": 5, "executor": 2})
    tally.faults["store.before-put", "error"] += 4
    tally.findings.append(Finding("lost", "log/1", 0, "step 3: sweep", "folder"))
    assert (tally.total, tally.jvms) == (5, 2)
    text = "\n".join(tally.lines())
    assert re.search(r"operator\.open +3 +3\nany moment +2 +2\nall +2 +3 +5\nprocesses +2 +5 +7", text)
    assert re.search(r"store\.before-put +error +4", text)
    assert re.search(r"lost +1", text)
    assert "lost: round 0, step 3: sweep: log/1" in text
    assert tally.to_dict(seed=1)["kills"][0] == {"role": "executor", "at": "any moment", "kills": 2}


def test_a_campaign_that_cannot_run_says_so(tmp_path: Path) -> None:
    environ = {**os.environ, "JAVA_HOME": str(tmp_path / "none"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([*_PROGRAM, "--kills", "1"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the campaign cannot run" in done.stderr
