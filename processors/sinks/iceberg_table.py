"""One Iceberg table of a sink, by pyiceberg: writes data files, and appends them with the position of their task.

Only programs with an ``IcebergSink`` import the module, because pyiceberg imports slowly.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import BucketTransform, VoidTransform

from holdfast.infra.errors import HoldfastError
from holdfast.processors.sinks.parquet import encode, table_of

#: The prefix of the table properties with the last published commit of each task. The rest is the task's label.
POSITION = "holdfast.sink."
#: Maximum attempts to append after other writers of the table were faster.
CONFLICTS_MAX = 10


class IcebergTableUnusable(HoldfastError):
    """The table of an ``IcebergSink`` is missing, or has a partitioning that the sink can't write."""


class IcebergTable:
    """The table of a sink.

    Args:
        catalog: The properties of the catalog, as pyiceberg's ``load_catalog`` takes them.
        name: The table's name, with its namespace: ``namespace.table``.
        create: Whether a missing table is created, with the columns of the first rows.
    """

    def __init__(self, catalog: Mapping[str, str], name: str, *, create: bool) -> None:
        self.name, self._properties, self._create = name, dict(catalog), create
        self._catalog: Catalog | None = None
        self._table: Table | None = None

    def forget(self) -> None:
        """Lets the next call load the table again."""
        self._table = None

    def write(self, label: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Writes data files that no snapshot names, and returns their locations.

        Raises:
            TypeError: A row has a value of another type than its column.
            ValueError: The same, or a row has a column that the table lacks, or lacks a required one.
        """
        table = self._current(rows)
        written = []
        for part in _parts(table, rows):
            content = encode(self._as_table(table, part), "zstd")
            place = f"{table.location()}/data/{label}-{uuid.uuid4().hex}.parquet"
            with table.io.new_output(place).create() as file:
                file.write(content)
            written.append(place)
        return written

    def unfit(self, rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Returns the rows that the table can't have, by their index, each with a reason."""
        found = {}
        for at, row in enumerate(rows):
            try:
                self._as_table(self._current(rows), [row])
            except (TypeError, ValueError) as failure:
                found[at] = " ".join(str(failure).split())[:300]
        return found

    def append(self, label: str, parts: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Appends the files of parts in one snapshot, with the number of the last part as a property of the table.

        Parts whose number is not greater than the property are in the table, and are left out.

        Raises:
            CommitFailedException: Other writers were faster in each attempt.
        """
        key, conflict = POSITION + label, CommitFailedException("no attempt")
        for _ in range(CONFLICTS_MAX):
            table = self._loaded()
            last = int(table.properties.get(key, "0"))
            waiting = [(number, files) for number, files in parts if number > last]
            files = [each for _, some in waiting for each in some]
            if not waiting:
                return
            # pyiceberg would repeat a refused commit without this check, and a frozen worker that wakes up would append
            # the files that its successor has appended.
            table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
            position = {key: str(waiting[-1][0])}
            try:
                with table.transaction() as change:
                    change.set_properties(position)
                    if files:
                        change.add_files(files, snapshot_properties=position, check_duplicate_files=False)
                return
            except CommitFailedException as faster:
                conflict = faster
        raise conflict

    def position(self, label: str) -> int:
        """Returns the number of the last part of a task that is in the table; 0 if there is none, or no table."""
        try:
            return int(self._loaded().properties.get(POSITION + label, "0"))
        except NoSuchTableError:
            return 0

    def _current(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        if self._table is None:
            try:
                self._table = self._loaded()
            except NoSuchTableError:
                self._table = self._created(rows)
            _check_partitions(self._table)
        return self._table

    def _loaded(self) -> Table:
        if self._catalog is None:
            self._catalog = load_catalog("holdfast", **self._properties)
        return self._catalog.load_table(self.name)

    def _created(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        assert self._catalog is not None
        schema = table_of(rows, None).schema
        if not self._create:
            fields = ", ".join(f"{each.name} {each.type}" for each in schema)
            raise IcebergTableUnusable(
                f"Table {self.name} is not in the catalog.",
                action=f"Create it with the columns {fields}, or write `create=True`.",
                table=self.name,
            )
        schema = pa.schema([each.with_type(pa.string()) if pa.types.is_null(each.type) else each for each in schema])
        try:
            self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            return self._catalog.create_table(self.name, schema=schema)
        except TableAlreadyExistsError:
            return self._loaded()

    @staticmethod
    def _as_table(table: Table, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        required = [each.name for each in table.schema().fields if each.required]
        for row in rows:
            if lacking := [name for name in required if row.get(name) is None]:
                raise ValueError(f"the required column {', '.join(lacking)} has no value")
        return table_of(rows, schema_to_pyarrow(table.schema(), include_field_ids=False))


def _check_partitions(table: Table) -> None:
    bad = [str(each.transform) for each in table.spec().fields if isinstance(each.transform, BucketTransform)]
    if bad:
        raise IcebergTableUnusable(
            f"Table {'.'.join(table.name())} is partitioned by {', '.join(bad)}; data files can't be added to buckets.",
            action="Partition the table by values, `truncate`, or times: the `day` of a column.",
            table=".".join(table.name()),
        )


def _parts(table: Table, rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Splits rows by the partition of the table: a data file belongs to one partition."""
    schema, fields = (
        table.schema(),
        [each for each in table.spec().fields if not isinstance(each.transform, VoidTransform)],
    )
    if not fields:
        return [list(rows)]
    sources = [(each, schema.find_field(each.source_id)) for each in fields]
    kinds = schema_to_pyarrow(schema, include_field_ids=False)
    columns = [
        each.transform.pyarrow_transform(source.field_type)(
            pa.array([row.get(source.name) for row in rows], type=kinds.field(source.name).type)
        ).to_pylist()
        for each, source in sources
    ]
    parts: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row, place in zip(rows, zip(*columns, strict=True), strict=True):
        parts.setdefault(place, []).append(row)
    return list(parts.values())
