"""The global tables of one worker: read completely before the first message, then updated with each new record.

    begin ──► loading: every partition from its first record ──► all targets reached: functions can read rows ──► live
      ▲                                                                                                           │
      └─ the topic was truncated or recreated, or has more partitions; functions read the old rows until the end ◄┘

The target of a partition is its last stable offset when loading starts, so loading does not wait for a producer's open
transaction. Rows are kept in memory as serialized bytes. The rows belong to no task: no changelog, checkpoint, audit or
commit contains them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import structlog

from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable, KafkaFailed, TopicUnusable
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.infra.masking import masked
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.processors.engine.formats.serialization import Deserializer, as_is
from holdfast.processors.engine.joins.global_tables import GlobalTable, Rows, Unreadable, rows_in_use
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, Cluster
from holdfast.processors.engine.runtime.reading.deserialized import ENDING

_log = structlog.get_logger("runtime.global_tables")

#: Maximum number of records that one poll returns.
RECORDS_PER_STEP = 10_000
#: Python's memory overhead of each bytes object, in bytes.
_OBJECT_BYTES = sys.getsizeof(b"")
#: Limits of a log line about unreadable rows: number of rows, and characters of each row's error text.
TOLD_ROWS_MAX, REASON_MAX = 5, 200
#: Minimum seconds between two log lines about the progress of loading.
TOLD_EVERY_S = 5.0


@dataclass(slots=True)
class _Load:
    """One load of all global tables: the rows of each topic, and the position and target offset of each partition."""

    rows: dict[str, Rows]
    deserializers: Mapping[str, Deserializer]
    positions: dict[Partition, int]
    targets: dict[Partition, int]
    began_at: float
    #: Maps each topic to the total bytes of all its keys and values.
    sizes: Counter[str] = field(default_factory=Counter)
    records: int = 0
    #: Number of records that were skipped, because they have no key.
    keyless: int = 0
    told_at: float = field(default=0.0)
    #: Topic and key of each unreadable row that is not logged yet.
    untold: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        """Number of offsets that are left to read up to the targets, summed over all partitions."""
        return sum(max(0, end - self.positions[place]) for place, end in self.targets.items())

    def take(self, batch: Batch) -> None:
        """Stores the records of one partition as rows of the table. A tombstone deletes the row of its key.

        A row whose value can't be deserialized is stored, too, and is marked as unreadable.
        """
        rows, grown = self.rows[batch.partition.topic], 0
        self.records += len(batch.keys)
        for key, value in zip(batch.keys, batch.values, strict=True):
            if key is None:
                self.keyless += 1
                continue
            former = rows.pop(key, None) if value is None else rows.get(key)
            if former is not None:
                grown -= len(key) + len(former)
            if value is not None:
                rows[key] = value
                grown += len(key) + len(value)
        self.sizes[batch.partition.topic] += grown
        self._check(batch, rows.unreadable)

    def _check(self, batch: Batch, unreadable: dict[bytes, Unreadable]) -> None:
        deserialize = self.deserializers[batch.partition.topic]
        if deserialize is as_is:
            return
        if not unreadable and _all_readable(batch, deserialize):
            return
        for index, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            if key is None:
                continue
            unreadable.pop(key, None)
            try:
                None if value is None else deserialize(value)
            except SchemaRegistryFailed:
                raise
            except (Exception, *ENDING) as failure:
                reason = masked(f"{type(failure).__name__}: {failure}")[:REASON_MAX]
                unreadable[key] = Unreadable(batch.partition, batch.offsets[index], reason)
                self.untold.append((batch.partition.topic, key))

    def tell_unreadable(self) -> None:
        """Logs unreadable rows that were not logged yet.

        A row is left out if a readable value has replaced it.
        """
        if not self.untold:
            return
        untold = dict.fromkeys(self.untold)
        places = [self.rows[topic].unreadable.get(key) for topic, key in untold]
        found = [str(place) for place in places if place is not None]
        self.untold.clear()
        if found:
            _log.error(
                "rows of a global table can't be read; messages that look them up fail",
                count=len(found),
                rows=found[:TOLD_ROWS_MAX],
                next="write these rows again, corrected, or delete them with a value of None",
            )

    def memory(self, topic: str) -> int:
        """Estimated memory of a topic's rows in bytes, including Python's overhead."""
        rows = self.rows[topic]
        return self.sizes[topic] + 2 * _OBJECT_BYTES * len(rows) + sys.getsizeof(rows)


def _all_readable(batch: Batch, deserialize: Deserializer) -> bool:
    try:
        for value in batch.values:
            if value is not None:
                deserialize(value)
    except SchemaRegistryFailed:
        raise  # the schema registry did not answer, so the row may be readable later
    except (Exception, *ENDING):
        return False
    return True


class GlobalTables:
    """The rows of a worker's global tables, by topic."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topics: tuple[str, ...] = ()
        self._deserializers: dict[str, Deserializer] = {}
        self._consumer: ChangelogReplayer | None = None
        #: Maps each topic to the rows that user functions read. A reload replaces the ``Rows`` object of a topic.
        self._served: dict[str, Rows] = {}
        self._load: _Load | None = None
        self._ids: dict[str, str] = {}
        self._widths: dict[str, int] = {}
        #: The load whose rows the user functions read now; None before the first complete load.
        self._whole: _Load | None = None
        self._following: _Load | None = None
        self._is_stale = False

    def declare(self, tables: Mapping[str, GlobalTable]) -> None:
        """Sets the tables to load, by topic. Must be called before ``load``."""
        self._topics = tuple(tables)
        self._deserializers = {topic: table.topic.deserialize_value for topic, table in tables.items()}
        self._served = {topic: Rows() for topic in self._topics}

    def in_use(self) -> AbstractContextManager[None]:
        """Returns a context manager. Inside it, user functions on this thread can look up the rows."""
        return rows_in_use(self._served)

    def load(self, goes_on: Callable[[], bool]) -> None:
        """Loads all tables completely. ``goes_on`` is called after each poll; if it returns False, the load stops.

        Raises:
            TopicUnusable: A topic is missing.
            KafkaFailed: A topic can't be read.
        """
        if not self._topics:
            return
        self._begin()
        while self._load is not None and goes_on():
            self._step(0.1)

    def follow(self) -> None:
        """Applies the new records that are available now, without waiting. Raises the same errors as ``load``."""
        if self._consumer is None:
            return
        try:
            if self._is_stale:
                self._begin()
            self._step(0.0)
        except (TopicUnusable, AccessRefused):
            raise
        except BrokerUnreachable:
            return  # not logged here, because the worker's main loop reports unreachable brokers
        except KafkaFailed as failure:
            _log.warning("a global table can't be read on; it is loaded again", error=failure.message)
            self._is_stale = True

    def compare(self, ids: Mapping[str, str | None], widths: Mapping[str, int]) -> None:
        """Schedules a reload of the tables if a topic was recreated (new topic id) or got more partitions.

        Args:
            ids: The current topic id of each topic; None for a missing topic.
            widths: The current number of partitions of each topic.
        """
        wider = {topic: widths[topic] for topic, known in self._widths.items() if widths.get(topic, 0) > known}
        if wider:
            _log.info("the topic of a global table has more partitions; the tables are loaded again", partitions=wider)
            self._is_stale, self._widths = True, {}
        if any(ids.get(topic) not in (None, known) for topic, known in self._ids.items()):
            _log.warning("the topic of a global table was recreated; it is loaded again", topics=self._topics)
            self._is_stale, self._ids = True, {}

    def close(self) -> None:
        """Closes the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @property
    def is_loaded(self) -> bool:
        """Whether all tables were loaded completely, so that a missing row is not there."""
        return self._whole is not None

    def row(self, topic: str, key: bytes) -> tuple[bool, Any]:
        """Returns whether a table has a row of this key, and the deserialized row. Any thread may call it.

        Raises an error of the deserializer if the row can't be read.
        """
        stored = self._served[topic].get(key)
        return (False, None) if stored is None else (True, self._deserializers[topic](stored))

    def told(self) -> dict[str, dict[str, Any]]:
        """Maps each topic to its status: number of rows, unreadable rows, bytes, and the progress of a running load."""
        return {
            topic: {
                "rows": len(rows),
                "unreadable": len(rows.unreadable),
                "bytes": sum(each.memory(topic) for each in self._kept()),
                "loading": self._load is not None,
                "remaining": 0 if self._load is None else self._load.remaining,
            }
            for topic, rows in self._served.items()
        }

    def _kept(self) -> list[_Load]:
        """Returns the loads whose rows are in memory: the load that functions read, and its replacement, if any."""
        loads = {id(each): each for each in (self._whole, self._load) if each is not None}
        return list(loads.values())

    def _begin(self) -> None:
        topics = self._cluster.topics()
        described = topics.describe(self._topics)
        for topic in self._topics:
            if topic not in described:
                raise TopicUnusable(
                    f"The topic {topic} of a global table is not there.",
                    action=f"Create {topic} and fill it; then restart the processor.",
                    cause="source-missing",
                    topic=topic,
                )
        self._ids = {topic: facts.topic_id for topic, facts in described.items()}
        self._widths = {topic: facts.partitions for topic, facts in described.items()}
        starts, targets = dict[Partition, int](), dict[Partition, int]()
        for topic in self._topics:
            firsts, ends = topics.start_offsets(topic), topics.end_offsets(topic, committed=True)
            for number, first in firsts.items():
                starts[Partition(topic, number)] = first
                targets[Partition(topic, number)] = ends.get(number, first)
        if self._consumer is None:
            self._consumer = self._cluster.changelog_consumer()
        self._consumer.assign(starts)
        now = self._cluster.clock.monotonic()
        rows = {topic: Rows() for topic in self._topics}
        self._load = _Load(rows, self._deserializers, starts, targets, now, told_at=now)
        self._following, self._is_stale = self._load, False
        self._tell_or_serve()

    def _step(self, wait_s: float) -> None:
        assert self._consumer is not None
        assert self._following is not None
        into = self._following
        batches, ends = self._consumer.poll(RECORDS_PER_STEP, wait_s)
        for batch in batches:
            into.take(batch)
        if self._load is not None:
            into.positions.update(self._consumer.positions(list(into.positions)))
            # At the end of a partition, the consumer's position may be before transaction markers. The end offset is
            # after the markers, so it is used as the position.
            for place, end in ends.items():
                into.positions[place] = max(end, into.positions[place])
            self._tell_or_serve()
        if self._load is None:
            into.tell_unreadable()

    def _tell_or_serve(self) -> None:
        load, now = self._load, self._cluster.clock.monotonic()
        assert load is not None
        seconds = round(max(now - load.began_at, 1e-3), 3)
        counts = {topic: len(rows) for topic, rows in load.rows.items()}
        if not load.remaining:
            self._served.update(load.rows)
            self._whole, self._load = load, None
            _log.info("global tables are loaded", rows=counts, records=load.records, seconds=seconds)
            if load.keyless:
                _log.warning("records without a key are no rows of a global table", records=load.keyless)
        elif now - load.told_at >= TOLD_EVERY_S:
            load.told_at = now
            rate = load.records / seconds
            left = round(load.remaining / rate, 1) if rate else None
            _log.info("global tables are being loaded", rows=counts, remaining=load.remaining, seconds_left=left)
