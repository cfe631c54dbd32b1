"""``IcebergSink``: appends results to an Iceberg table, exactly once.

    before the commit    data files that no snapshot names
    in the commit        their locations, in the task's state
    after the commit     one snapshot with the files; the property ``holdfast.sink.<task>`` has the commit's number

The snapshot and the property change together, so a repeated append finds the number and adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.installation import naming_extras
from holdfast.infra.masking import shown_url
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sinks.errors import SinkInvalid, SinkRowsRefused
from holdfast.processors.engine.sinks.sink import SinkBatch
from holdfast.processors.engine.sinks.staging import SinkTask, StagedPart, StagingSink
from holdfast.processors.sinks.patience import Attempts, Patience
from holdfast.processors.sinks.rows import RowOf, record_of

if TYPE_CHECKING:
    from holdfast.processors.sinks.iceberg_table import IcebergTable


class IcebergSink(StagingSink):
    """Appends each result as a row of an Iceberg table by pyiceberg, exactly once, whatever is killed.

    The fields of a value are the columns. Each commit of a task makes one snapshot: set ``commit_interval`` of the
    application to some minutes, and let the table expire its snapshots.

    Args:
        table: The name of the table, with its namespace: ``namespace.table``.
        catalog: The properties of the catalog, as pyiceberg's ``load_catalog`` takes them, for example ``{"type":
            "rest", "uri": "https://host"}``.
        name: The name of the sink, unique in the application.
        create: Whether a missing table is created, with the columns of the first rows.
        row: A function that makes the columns from a result (``SinkItem``); None means the fields of the value. If it
            returns None, the result is left out.
        metadata: Whether a row gets ``_key``, ``_timestamp``, ``_topic``, ``_partition`` and ``_offset``, too.
        retry: How often to try again while catalog or storage do not answer.

    Raises:
        SinkInvalid: ``table`` has no namespace.
        ExtraMissing: pyiceberg or pyarrow is not installed.
    """

    def __init__(
        self,
        table: str,
        catalog: Mapping[str, str],
        *,
        name: str = "iceberg",
        create: bool = False,
        row: RowOf | None = None,
        metadata: bool = True,
        retry: Patience | None = None,
    ) -> None:
        super().__init__(name)
        if not isinstance(table, str) or not all(table.rpartition(".")[::2]):
            raise SinkInvalid(
                f"`table` is {table!r}; expected a namespace and a name.",
                action="Write `IcebergSink('sales.orders', catalog)`.",
            )
        with naming_extras():
            from holdfast.processors.sinks import iceberg_table

        self._table: IcebergTable = iceberg_table.IcebergTable(catalog, table, create=create)
        self._row, self._metadata = row, metadata
        uri = catalog.get("uri")
        self._place = table if uri is None else f"{shown_url(uri)} {table}"
        self._attempts = Attempts(retry or Patience(), f"The catalog or the storage of table {table}")

    @property
    def connects_to(self) -> ExternalSystem:
        """The URI of the catalog without its password, and the table."""
        return ExternalSystem("iceberg", self._place)

    def stage(self, batch: SinkBatch) -> Any:
        """Writes the rows of a batch to data files that no snapshot names, and returns their locations."""
        rows = [(item, record_of(item, batch, self._row, metadata=self._metadata)) for item in batch]
        kept = [(item, row) for item, row in rows if row is not None]
        if not kept:
            return []
        values, label = [row for _, row in kept], self.task_of(batch).label
        try:
            return self._reach(lambda: self._table.write(label, values))
        except (TypeError, ValueError) as failure:
            refused = self._table.unfit(values) or dict.fromkeys(range(len(kept)), str(failure))
            where = f"{batch.topic}[{batch.partition}] offset"
            told = [
                (
                    kept[at][0],
                    f"The result of {where} {kept[at][0].offset} fits no row of table {self._table.name}: {why}.",
                )
                for at, why in refused.items()
            ]
            self._table.forget()
            action = "Give the value the columns and types of the table, or change the table's schema."
            raise SinkRowsRefused(batch, told, action) from failure

    def publish(self, task: SinkTask, parts: Sequence[StagedPart]) -> None:
        """Appends the data files of committed parts in one snapshot."""
        found = [(part.sequence, [place for places in part.content for place in places]) for part in parts]
        if any(files for _, files in found):
            self._reach(lambda: self._table.append(task.label, found))

    def published(self, task: SinkTask) -> int:
        """Returns the number of the task's last commit that is in the table; 0 if there is none."""
        last: int = self._reach(lambda: self._table.position(task.label))
        return last

    def _reach(self, call: Callable[[], Any]) -> Any:
        try:
            made = call()
        except (HoldfastError, TypeError, ValueError, FileNotFoundError, PermissionError):
            raise
        except Exception as failure:
            self._attempts.failed(failure)
        self._attempts.succeeded()
        return made
