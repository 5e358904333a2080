"""kill -9 at every step of a query with windows over distinct rows: each batch's answer is that of a model.

Owns: two operators in one query under kills. Does not own: the query and its model (`support.kills.windows`), kills of
aggregations (`test_kills`) and processors (`test_processor_kills`).
"""

from __future__ import annotations

import pytest

from support.kills.kinds import WINDOWS
from support.kills.points import RESTORE_POINTS, SERVER_POINTS, WORKER_POINTS
from support.kills.steps import MATERIALIZE_OFTEN, Start, finish, some, strike, warm

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]


def test_windows_over_distinct_rows_survive_kills(start: Start, seed: int) -> None:
    run = start(kind=WINDOWS, conf=WINDOWS.conf, options=MATERIALIZE_OFTEN)
    warm(run, 6)
    for point in some(WORKER_POINTS + SERVER_POINTS, seed, 3):
        strike(run, "worker", point)
    for point in some(WORKER_POINTS[1:] + SERVER_POINTS, seed + 1, 3):
        if point.startswith("promote"):
            warm(run, 1)
        strike(run, "state server", point)
    warm(run, 3)
    run.kill("state server")
    run.wipe()
    strike(run, "state server", some(RESTORE_POINTS, seed, 1)[0])
    strike(run, "driver", "sink.after")
    finish(run)
