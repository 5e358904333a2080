"""The process in which Spark asks an operator for the schema of its state, at each start of a query.

Owns: what it takes to import. Does not own: what the operators declare there (`spark/test_processor_plan`).
"""

from __future__ import annotations

import pytest

from support.programs import run


@pytest.mark.parametrize(
    "operator",
    [
        "aggregates.operator.ShardProcessor",
        "aggregates.event_time.EventTimeProcessor",
        "processor.operator.ProcessorOperator",
    ],
)
def test_it_reads_an_operator_without_pandas(operator: str) -> None:
    module, name = operator.rsplit(".", 1)
    outcome = run(
        f"""
        import pickle, sys
        import pyspark.sql.streaming.transform_with_state_driver_worker
        from fastchangelog.spark.{module} import {name}
        assert pickle.loads(pickle.dumps({name})) is {name}
        print("pandas" in sys.modules)
        """
    )
    assert (outcome.returncode, outcome.stdout) == (0, "False\n"), outcome.stderr
