"""Rows of tables on their way into changelogs: checked, spread over partitions, sent in transactions.

Invariants:
    - What is sent is what the table's version holds, key for key: the fingerprint of what was read says so.
    - All of it goes in transactions of one transactional id for each processor: who takes over fences who went before.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Protocol

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import KEY_VERSION, VALUE_VERSION
from holdfast.processors.engine.changelog.names import loading_id
from holdfast.processors.engine.runtime.ports import TransactionProducer
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from holdfast.processors.lifecycle.plans.apply import ApplyFailed, Tell
from holdfast.processors.lifecycle.plans.warehouse_facts import Rows, Tables

#: A transaction has at most so many records, or so many bytes and one record more.
RECORDS_MAX = 10_000
BYTES_MAX = 16 << 20
#: How long a producer may take until it has fenced who went before, and records until they are there, seconds.
INIT_S, FLUSH_S = 60.0, 60.0


class TableDamaged(ApplyFailed):
    """A snapshot's table does not hold what its manifest says. Fields: store, partition."""


class TableUnfit(ApplyFailed):
    """A table's rows can't become the content of a store; nothing was changed. Fields: table."""


class Sender(Protocol):
    """Makes producers; ``processors.engine.runtime.ports.Cluster``."""

    def producer(self, transactional_id: str | None) -> TransactionProducer:
        """A new one."""
        ...


@contextmanager
def loader(cluster: Sender, processor: str) -> Iterator[Loader]:
    """Sends records of a processor's changelogs; open transactions of an earlier one are ended first."""
    producer = cluster.producer(loading_id(processor))
    try:
        producer.init(INIT_S)
        yield Loader(producer)
    finally:
        producer.close()


class Loader:
    """Sends records in transactions of bounded size.

    Args:
        producer: Through which; initialised.
    """

    def __init__(self, producer: TransactionProducer) -> None:
        self.producer = producer

    def send(self, topic: str, partition: int, rows: Rows) -> None:
        """Send records, and commit them.

        Raises:
            HoldfastError: They are not there for certain; sent again, they do no harm.
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
    """The rows of one partition of a snapshot; at the end, what was read is compared with its manifest.

    Args:
        tables: The warehouse.
        of: The store, its table, and the table's version.
        partition: The changelog partition.
        expected: The fingerprint that the manifest has.

    Raises:
        TableDamaged: It is not what the manifest says, or in a format that no changelog has.
    """
    store, table, version = of
    seen = Fingerprint()
    for keys, values in tables.store_rows(table, version, partition):
        if not _fit(keys, values):
            raise TableDamaged(
                f"Version {version} of {table} has rows of partition {partition} whose keys or values are none of a "
                "changelog in the format that this version knows.",
                action="Name another snapshot.",
                store=store,
                partition=partition,
            )
        seen += fingerprint_of(zip(keys, values, strict=True))
        yield keys, values
    if seen.hex != expected:
        count = int(expected.partition("-")[0])
        raise TableDamaged(
            f"Version {version} of {table} holds other rows of partition {partition} than its manifest says: "
            f"{seen.count:,} keys ({seen.hex}), expected {count:,} ({expected}).",
            action="Its files were changed or lost. Name another snapshot.",
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
    """A message key as a table has it: text in UTF-8, whole numbers as their digits, bytes as they are; None for none.

    Raises:
        TableUnfit: It is something else.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    raise TableUnfit(
        f"A message key is a {type(value).__name__}, expected text, a whole number or bytes.",
        action="Name a column of such a type; nothing was changed.",
    )


def row_value(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: times as ISO 8601 text, decimals as text, bytes as base64, NaN and infinity as null."""
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


def told(tell: Tell, what: str, every: int = 100_000) -> Progress:
    """Tells so often how many rows there were."""
    return Progress(tell, what, every)


class Progress:
    """Counts rows, and tells of them now and then."""

    def __init__(self, tell: Tell, what: str, every: int) -> None:
        self._tell, self._what, self._every, self._next = tell, what, every, every
        self.rows = 0

    def add(self, rows: int) -> None:
        """So many more."""
        self.rows += rows
        if self.rows >= self._next:
            self._next = self.rows + self._every
            self._tell(f"{self.rows:,} rows {self._what}")


def unreadable(failure: HoldfastError) -> TableUnfit:
    """What can't be read before anything was changed ends the apply: there is nothing to go on with."""
    return TableUnfit(failure.message, action=f"{failure.action} Nothing was changed.", **failure.fields)
