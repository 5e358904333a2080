"""A running join: payments with the customer of their order, whichever of the two arrives first.

Run: python examples/stream_join.py

It shows two streams as one: a union, with nulls in the columns of the other side, keyed by order. The processor keeps
the customer of an order in a value state, and payments that wait for their order in a list state. Neither is forgotten
here: fraud_rule.py has a timer and deduplication.py a TTL that would do that.

The query starts twice, with one side of two orders before the restart and the other side after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from fastchangelog.spark import grouped

ORDER = "id string, customer string"
PAYMENT = "id string, amount double"

#: The input before each start of the query: orders, payments.
ARRIVALS = (
    (
        """\
order 1,ann
""",
        """\
order 1,10.00
order 2,20.00
order 2,25.00
""",
    ),
    (
        """\
order 2,bob
order 3,cid
""",
        """\
order 1,15.00
order 3,30.00
order 4,40.00
""",
    ),
)


class Join(StatefulProcessor):
    """Keeps the customer of an order, and the payments that wait for it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.customer = handle.getValueState("customer", "name string")
        self.waiting = handle.getListState("waiting", "amount double")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        payments = []
        for row in rows:  # of both sides, in any order
            if row.customer is not None:
                self.customer.update((row.customer,))
            else:
                payments.append((row.amount,))
        customer = self.customer.get()
        if customer is not None:
            for (amount,) in [*self.waiting.get(), *payments]:
                yield Row(id=key[0], customer=customer[0], amount=amount)
            self.waiting.clear()
        elif payments:
            self.waiting.appendList(payments)

    def close(self) -> None:
        pass


def joined(orders: DataFrame, payments: DataFrame, state: str) -> DataFrame:
    both = orders.unionByName(payments, allowMissingColumns=True)
    return grouped(both, "id", state=state).transformWithState(
        Join(), "id string, customer string, amount double", "Append", "None"
    )


def run(spark: SparkSession, folder: Path) -> DataFrame:
    """Starts the query after each arrival, until it has read all there is; gives the payments with their customers."""
    for side in ("orders", "payments"):
        (folder / side).mkdir()
    for number, (order_lines, payment_lines) in enumerate(ARRIVALS):
        (folder / "orders" / f"{number}.csv").write_text(order_lines)
        (folder / "payments" / f"{number}.csv").write_text(payment_lines)
        orders = spark.readStream.schema(ORDER).csv(f"{folder}/orders")
        payments = spark.readStream.schema(PAYMENT).csv(f"{folder}/payments")
        query = (
            joined(orders, payments, state=f"file://{folder}/state")
            .writeStream.format("parquet")
            .option("path", f"{folder}/joined")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return spark.read.parquet(f"{folder}/joined").orderBy("id", "amount")


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        run(spark, Path(folder)).show()


if __name__ == "__main__":
    main()
