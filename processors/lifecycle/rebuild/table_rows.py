"""Checks the rows of a table, and sends them to changelogs in transactions.

Invariants:
    - The sent rows are exactly the rows of the planned table version (Iceberg snapshot). This is checked by the
      fingerprint in the manifest.
    - Each processor has one transactional id for loading, so an earlier loader cannot commit after a new loader began.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.processors.engine.changelog.format import KEY_VERSION, VALUE_VERSION
from holdfast.processors.engine.changelog.names import loading_id
from holdfast.processors.engine.runtime.ports import TransactionProducer
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from holdfast.processors.lifecycle.plans.apply import ApplyFailed, ProgressLog
from holdfast.processors.lifecycle.plans.facts.warehouse import Rows, Tables

#: Maximum records of one transaction. A transaction also ends with the record that reaches ``BYTES_MAX`` bytes.
RECORDS_MAX = 10_000
BYTES_MAX = 16 << 20
#: Two timeouts in seconds: for fencing an earlier producer, and for the broker's acknowledgement of sent records.
INIT_S, FLUSH_S = 60.0, 60.0
#: Number of rows between two progress messages.
TELL_EVERY_ROWS = 100_000


class TableDamaged(ApplyFailed):
    """A snapshot's table differs from its manifest. Fields: ``store``, ``partition``."""


class TableUnfit(ApplyFailed):
    """A table's rows cannot be the content of a store; nothing was changed. Fields: ``table``."""


@contextmanager
def loader(cluster: KafkaCluster, processor: str) -> Iterator[Loader]:
    """Aborts the open transactions of an earlier loader, and yields an object that sends changelog records."""
    producer = cluster.producer(loading_id(processor))
    try:
        producer.init(INIT_S)
        yield Loader(producer)
    finally:
        producer.close()


class Loader:
    """Sends records in transactions of limited size; ``producer`` is transactional and initialized."""

    def __init__(self, producer: TransactionProducer) -> None:
        self.producer = producer

    def send(self, topic: str, partition: int, rows: Rows) -> None:
        """Send records to one partition, and commit them.

        Raises:
            HoldfastError: The outcome is unknown; it is safe to send the same records again.
        """
        keys, values = rows
        for first, last in _pieces(values):
            self.producer.begin()
            self.producer.produce_all(topic, values[first:last], keys[first:last], partition=partition)
            self.producer.flush(FLUSH_S)
            self.producer.commit()


def _pieces(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    first = size = 0
    for at, value in enumerate(values):
        size += len(value)
        if size >= BYTES_MAX or at + 1 - first == RECORDS_MAX:
            yield first, at + 1
            first, size = at + 1, 0
    if first < len(values):
        yield first, len(values)


def checked_rows(tables: Tables, of: tuple[str, str, int], partition: int, expected: str) -> Iterator[Rows]:
    """Yields the rows of one partition of a snapshot; after the last row, compares their fingerprint with the manifest.

    Args:
        tables: The warehouse.
        of: The store, its table, and the table's version.
        partition: The changelog partition.
        expected: The fingerprint in the manifest.

    Raises:
        TableDamaged: The fingerprint differs, or rows are not in the format of a changelog.
    """
    store, table, version = of
    seen = Fingerprint()
    for keys, values in tables.store_rows(table, version, partition):
        if not _fit(keys, values):
            raise TableDamaged(
                f"Version {version} of {table} has rows of partition {partition} that are not in the changelog format: "
                f"keys of format {KEY_VERSION} and values of format {VALUE_VERSION} were expected.",
                action="Name another snapshot with `--at`.",
                store=store,
                partition=partition,
            )
        seen += fingerprint_of(zip(keys, values, strict=True))
        yield keys, values
    if seen.hex != expected:
        count = int(expected.partition("-")[0])
        raise TableDamaged(
            f"Version {version} of {table} differs from its manifest in partition {partition}: "
            f"{seen.count:,} keys ({seen.hex}), expected {count:,} ({expected}). Its files were changed or lost.",
            action="Name another snapshot with `--at`.",
            store=store,
            partition=partition,
            seen=seen.hex,
            expected=expected,
        )


def _fit(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> bool:
    return all(key is not None and key[:1] == bytes([KEY_VERSION]) for key in keys) and all(
        value is not None and value[:1] == bytes([VALUE_VERSION]) for value in values
    )


# -- rows of other tables ----------------------------------------------------------------------------------------------


def message_key(value: Any) -> bytes | None:
    """Converts a value to a message key: text as UTF-8, integers as decimal digits, bytes unchanged, null to None.

    Raises:
        TableUnfit: The value has another type.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    raise TableUnfit(
        f"A message key is a {type(value).__name__}, expected text, an integer or bytes.",
        action="Name a key column of one of these types. Nothing was changed.",
    )


def row_value(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with JSON values: times as ISO 8601 text, decimals as text, bytes as base64, NaN and infinity as null."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value)


class Progress:
    """Counts rows, and reports the count every ``TELL_EVERY_ROWS`` rows."""

    def __init__(self, tell: ProgressLog, what: str) -> None:
        self._tell, self._what, self._next = tell, what, TELL_EVERY_ROWS
        self.rows = 0

    def add(self, rows: int) -> None:
        """Add rows to the count; may send a progress message."""
        self.rows += rows
        if self.rows >= self._next:
            self._next = self.rows + TELL_EVERY_ROWS
            self._tell(f"{self.rows:,} rows {self._what}")


def unreadable(failure: HoldfastError) -> TableUnfit:
    """Converts an error while reading a table to an error that ends the apply (execution of the plan).

    Nothing was changed before the error, so the apply need not be resumed.
    """
    return TableUnfit(failure.message, action=f"{failure.action} Nothing was changed.", **failure.fields)
