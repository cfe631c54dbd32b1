"""Totals of each customer in a SQL table. Each row is as if it had been written once, whatever is killed."""

import os
from typing import Any

from holdfast import Application, Count, Sum
from holdfast.sinks import SqlSink

DATABASE = os.environ.get("DATABASE_URL", "sqlite:///totals.db")


def application(database: str = DATABASE) -> Application:
    """The processor; in production: `application().run()`."""
    app = Application(
        consumer_group="customer-totals", auto_offset_reset="earliest", dead_letter_topic="orders-refused"
    )
    orders = app.dataframe(app.topic("orders", key_deserializer="str"))
    totals = orders.aggregate(orders=Count(), amount=Sum("amount"), store="totals")
    totals.sink(SqlSink(database, "customer_totals", key="customer", create=True))
    return app


#: The table of the same pattern in a program of your own: each row keeps the place of the message that it stands for.
TABLE = """
CREATE TABLE IF NOT EXISTS totals_by_hand (
    customer TEXT PRIMARY KEY,
    amount BIGINT NOT NULL,
    source_partition INTEGER NOT NULL,
    source_offset BIGINT NOT NULL
)
"""
#: An older offset changes nothing, so the statement is repeated safely. PostgreSQL and SQLite understand it.
UPSERT = """
INSERT INTO totals_by_hand (customer, amount, source_partition, source_offset)
VALUES (:customer, :amount, :source_partition, :source_offset)
ON CONFLICT (customer) DO UPDATE
SET amount = excluded.amount, source_partition = excluded.source_partition, source_offset = excluded.source_offset
WHERE totals_by_hand.source_partition <> excluded.source_partition
   OR totals_by_hand.source_offset < excluded.source_offset
"""


def upsert(connection: Any, customer: str, amount: int, partition: int, offset: int) -> None:
    """Writes one row by hand, by a connection of SQLAlchemy."""
    from sqlalchemy import text

    row = {"customer": customer, "amount": amount, "source_partition": partition, "source_offset": offset}
    connection.execute(text(UPSERT), row)


if __name__ == "__main__":
    application().run()
