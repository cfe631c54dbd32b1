"""``SqlSink``: rows of a SQL table, upserted by key, with the position of their message beside them.

    results of one partition ──► newest one of each key ──► one transaction of the database:
        1. the partition belongs to this worker (table ``holdfast_sink_owners``), otherwise SinkFenced
        2. INSERT … ON CONFLICT (key) DO UPDATE … WHERE the stored offset is not newer
        3. DELETE … WHERE the stored offset is not newer, for values that are None

Invariants:
    - An older offset of a partition never overwrites a newer one.
    - A worker that lost its partition to another worker changes no row after the other worker has got the partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.infra.installation import naming_extras
from holdfast.infra.kafka.records import Partition
from holdfast.infra.masking import shown_url
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sinks.errors import SinkFenced, SinkInvalid, SinkRowsRefused
from holdfast.processors.engine.sinks.sink import BatchingSink, SinkBatch, SinkItem
from holdfast.processors.sinks.patience import Attempts, Patience
from holdfast.processors.sinks.rows import PARTITION, TOPIC, Row, RowOf, RowUnusable, check_key, row_of

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection

    from holdfast.processors.sinks.sql_table import SqlTable

#: Identifies this process as the owner of partitions.
_PROCESS = uuid.uuid4().hex


class SqlSink(BatchingSink):
    """Upserts each result as a row of a table in PostgreSQL or SQLite, by SQLAlchemy; None deletes the row.

    The fields of a value are the columns. A repeated or late result never overwrites a newer one, so ``kill -9`` leaves
    each row as if its result had been written once.

    Args:
        url: The URL of the database, for example ``postgresql+psycopg://user:password@host/database``.
        table: The name of the table.
        key: The names of the columns that are the row's key. A column that the value lacks gets the message key.
        schema: The schema of the table; None means the database's default.
        create: Whether the sink creates a missing table and missing columns.
        row: A function that makes the columns from a result (``SinkItem``); None means the fields of the value. If it
            returns None, the row is deleted.
        retry: How often to try again while the database does not answer.

    Raises:
        SinkInvalid: An argument has a wrong value.
        ExtraMissing: SQLAlchemy, or the driver of the database, is not installed.
    """

    def __init__(  # tidy: allow-wide because these are independent options of one table
        self,
        url: str | URL,
        table: str,
        *,
        key: str | Sequence[str] = "key",
        schema: str | None = None,
        create: bool = False,
        row: RowOf | None = None,
        retry: Patience | None = None,
        on_client_connect_success: Callable[[], None] | None = None,
        on_client_connect_failure: Callable[[Exception | None], None] | None = None,
    ) -> None:
        super().__init__(on_client_connect_success, on_client_connect_failure)
        with naming_extras():
            from holdfast.processors.sinks import sql_errors
            from holdfast.processors.sinks.sql_table import SqlTable

            self._errors = sql_errors
            self._table: SqlTable = SqlTable(url, table, check_key(key), schema, create=create)
        if row is not None and not callable(row):
            raise SinkInvalid(
                f"`row` is {row!r}; expected a function of a SinkItem.", action="Write `row=lambda item: {...}`."
            )
        self._row, self.name = row, table
        self._shown = f"{shown_url(self._table.url)} {table if schema is None else f'{schema}.{table}'}"
        self._attempts = Attempts(retry or Patience(), f"The database {shown_url(self._table.url)}")
        self._processor = ""
        self._owned: set[tuple[str, int]] = set()
        #: The name of this process in the table of owners.
        self.owner = _PROCESS

    @property
    def connects_to(self) -> ExternalSystem:
        """The URL of the database without its password, and the table."""
        return ExternalSystem("sql", self._shown)

    def close(self) -> None:
        """Closes the connections."""
        self._table.close()

    def assigned(self, processor: str, partitions: Sequence[Partition]) -> None:
        """Records in the database that this process owns the partitions.

        If the database does not answer, the next write does it.
        """
        self._processor = processor
        self._owned.difference_update((each.topic, each.number) for each in partitions)
        for each in partitions:
            try:
                with self._table.begin() as connection:
                    self._own(connection, each.topic, each.number)
                self._owned.add((each.topic, each.number))
            except Exception as failure:
                if not (self._errors.is_away(failure) or self._errors.is_missing(failure)):
                    raise
                return  # each further attempt would wait for the same answer

    def write(self, batch: SinkBatch) -> None:
        """Upserts and deletes the rows of a batch in one transaction of the database.

        Raises:
            SinkBackpressureError: The database does not answer, or has a lock on a row.
            SinkRowsRefused: The database refuses rows, for example because of a constraint.
            SinkFenced: Another worker owns the partition now.
            SqlTableUnusable: The table or a column is missing.
            SinkSystemAway: The database has not answered for a long time.
        """
        rows = self._rows(batch)
        try:
            if not self._try_all(batch, rows):
                self._one_by_one(batch, rows)
        except Exception as failure:
            if not self._errors.is_away(failure):
                raise
            self._attempts.failed(failure)
        self._attempts.succeeded()
        self._owned.add((batch.topic, batch.partition))

    def _rows(self, batch: SinkBatch) -> list[Row]:
        """Returns the newest row of each key."""
        rows: dict[tuple[Any, ...], Row] = {}
        refused: list[tuple[SinkItem, str]] = []
        for item in batch:
            try:
                row = row_of(item, self._table.key, self._row)
                rows.pop(place := tuple(row.key.values()), None)
                rows[place] = row
            except (RowUnusable, TypeError) as failure:  # TypeError: a part of the key is a list or a dict
                where = f"{batch.topic}[{batch.partition}] offset {item.offset}"
                refused.append((item, f"The result of {where} can't be a row of {self._table.name}: {failure}."))
        if refused:
            raise SinkRowsRefused(batch, refused, f"Give each value the key columns {', '.join(self._table.key)}.")
        return list(rows.values())

    def _try_all(self, batch: SinkBatch, rows: Sequence[Row]) -> bool:
        """Writes all rows at once. Returns False, and writes nothing, if the database refuses one of them."""
        for again in (True, False):
            try:
                with self._table.begin() as connection:
                    self._table.prepare(connection, rows)
                    self._check_owner(connection, batch)
                    self._table.write(connection, batch, rows)
                return True
            except Exception as failure:
                self._table.forget()  # columns that the transaction added are undone, or another program changed some
                if self._errors.is_away(failure):
                    raise
                if self._errors.refuses_row(failure):
                    return False
                if not (self._errors.is_missing(failure) and again):
                    raise
        return False

    def _one_by_one(self, batch: SinkBatch, rows: Sequence[Row]) -> None:
        refused: list[tuple[Row, Exception]] = []
        with self._table.begin() as connection:
            self._table.prepare(connection, rows)
            self._check_owner(connection, batch)
            for row in rows:
                try:
                    with connection.begin_nested():
                        self._table.write(connection, batch, [row])
                except Exception as failure:
                    if not self._errors.refuses_row(failure):
                        raise
                    refused.append((row, failure))
            if refused:
                connection.rollback()
        if refused:
            told = [(row.item, f"{row.told(self._table.name, batch)}: {self._errors.why(e)}.") for row, e in refused]
            action = self._table.what_to_do(refused[0][0])
            self._table.forget()
            raise SinkRowsRefused(batch, told, action) from refused[0][1]

    def _check_owner(self, connection: Connection, batch: SinkBatch) -> None:
        """Locks the row that names the partition's owner, until the end of the transaction."""
        if (batch.topic, batch.partition) not in self._owned:
            self._own(connection, batch.topic, batch.partition)
        elif not self._table.owns(connection, self._place(batch.topic, batch.partition), self.owner):
            raise SinkFenced(
                f"Another worker of {self._processor} writes the results of {batch.topic}[{batch.partition}] to table "
                f"{self._table.name}.",
                action="Nothing: this worker discards its work and joins its group again.",
            )

    def _own(self, connection: Connection, topic: str, partition: int) -> None:
        self._table.own(connection, self._place(topic, partition), self.owner)

    def _place(self, topic: str, partition: int) -> dict[str, Any]:
        return {"processor": self._processor, TOPIC: topic, PARTITION: partition}
