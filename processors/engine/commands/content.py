"""Replays a changelog into a scratch RocksDB, and computes the writes that make one store equal to another.

Invariants:
    - A replay must be complete, from the first record to the high watermark, before its content is compared.
    - Both contents are read in the order of their keys. Only differences are written, in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.changelog.format import META_KEY, FormatUnknown, check_records, decode_meta, key_prefix
from holdfast.processors.engine.commands import sweep
from holdfast.processors.engine.runtime.owner_commands.commands import CommandFailed, CommandWrong
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, Cluster
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.message_keys import message_key_of
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import Writes

#: Maximum number of records that one step of a replay reads.
RECORDS_PER_STEP = 10_000
#: Maximum number of entries that one batch of ``Difference`` compares.
LOOKS_MAX = 50_000
#: Seconds. A replay fails if no record arrives during this time.
NO_PROGRESS_S = 120.0

#: A function that yields the (key, value) entries of a store or of a replayed changelog. The entries are in the order
#: of keys, from a given changelog key on.
Read = Callable[[bytes], Iterator[tuple[bytes, bytes]]]


class Difference:
    """Computes, in batches, the writes that make the content ``current`` of a store equal to the content ``wanted``."""

    def __init__(self, current: Read, wanted: Read) -> None:
        self._current, self._wanted = current, wanted
        self._after = b""
        self.done = False
        #: The numbers of entries so far: entries to write, entries to delete, and entries that are equal in both
        #: contents.
        self.set = self.deleted = self.same = 0

    def batch(self) -> Writes:
        """Returns the next writes. The result is empty if all entries that this call compared are equal.

        After the last entry, ``done`` is True.
        """
        first = self._after + b"\x00" if self._after else b""
        writes, looked, size = Writes([], []), 0, 0
        for key, old, new in _side_by_side(self._current(first), self._wanted(first)):
            grows = 0 if new is None or new == old else len(new)
            full = len(writes.keys) == sweep.ENTRIES_MAX or (size and size + grows > sweep.BYTES_MAX)
            if looked == LOOKS_MAX or full:
                return writes
            if old == new:
                self.same += 1
            else:
                writes.keys.append(key)
                writes.values.append(new)
                self.deleted += new is None
                self.set += new is not None
            looked, size, self._after = looked + 1, size + grows, key
        self.done = True
        return writes


def of_keys_in(keys: Read, content: Read) -> Read:
    """Returns a reader of ``content`` that yields only the entries of some message keys.

    These are the message keys that also have an entry in the content that ``keys`` reads.
    """

    def read(first: bytes) -> Iterator[tuple[bytes, bytes]]:
        head = b""
        for key, _ in keys(key_prefix(message_key_of(first)) if first else b""):
            if head and key.startswith(head):
                continue
            head = key_prefix(message_key_of(key))
            for entry in content(max(head, first)):
                if not entry[0].startswith(head):
                    break
                yield entry

    return read


def _side_by_side(
    current: Iterator[tuple[bytes, bytes]], wanted: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Reads two sorted contents in parallel. Yields (key, current value, wanted value); a missing value is None."""
    old, new = next(current, None), next(wanted, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield old[0], old[1], None
            old = next(current, None)
        elif old is None or new[0] < old[0]:
            yield new[0], None, new[1]
            new = next(wanted, None)
        else:
            yield new[0], old[1], new[1]
            old, new = next(current, None), next(wanted, None)


class Replay:
    """Replays one changelog partition completely into an empty scratch RocksDB, as the entries of ``store``.

    ``bounds`` is the pair (first offset of the partition, high watermark at which the replay ends).
    """

    def __init__(
        self, cluster: Cluster, place: Partition, bounds: tuple[int, int], into: TaskStore, store: str
    ) -> None:
        self._clock = cluster.clock
        self._place, (self.position, self._end) = place, bounds
        self._into, self._prefix = into, store_prefix(store)
        self._consumer: ChangelogReplayer = cluster.changelog_consumer()
        self._progress_at = self._clock.monotonic()
        #: The offset after the last replayed record. Transaction markers after this record are not counted.
        self.last = 0
        #: The input offsets in the last meta record that was replayed.
        self.inputs: Mapping[str, int] = {}
        self._consumer.assign({place: self.position})

    @property
    def done(self) -> bool:
        """Whether the replay is complete."""
        return self.position >= self._end

    def step(self) -> None:
        """Replays at most ``RECORDS_PER_STEP`` records.

        Raises:
            CommandFailed: No new record for ``NO_PROGRESS_S`` seconds, or the changelog can't be read.
            StateFailed: A write to the local disk failed.
        """
        try:
            batches, ends = self._consumer.poll(RECORDS_PER_STEP, 0.05)
            for batch in batches:
                self._load(batch)
            reached = max(self._consumer.positions([self._place]).get(self._place, 0), ends.get(self._place, 0))
        except (KafkaFailed, FormatUnknown) as failure:
            raise CommandFailed(failure.message, action=failure.action, done=0) from failure
        now = self._clock.monotonic()
        if batches or reached >= self._end:
            self._progress_at = now
        if reached >= self._end:
            self.position = max(self.position, reached)
        if now - self._progress_at > NO_PROGRESS_S:
            raise CommandFailed(
                f"Replaying {self._place.topic}[{self._place.number}] got no further than offset {self.position} of "
                f"{self._end} in {NO_PROGRESS_S:.0f} s: an open transaction holds its records back, or Kafka is down.",
                action="Stop its writer, abort open transactions on it, then repeat the command.",
                done=0,
            )

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _load(self, batch: Batch) -> None:
        keys: list[bytes] = []
        values: list[bytes | None] = []
        offsets: list[int] = []
        topic, number = self._place
        for key, value, offset in zip(batch.keys, batch.values, batch.offsets, strict=True):
            if offset >= self._end or key is None:
                continue
            self.last = offset + 1
            if key == META_KEY:
                self.inputs = self.inputs if value is None else decode_meta(topic, number, offset, value).inputs
                continue
            keys.append(key)
            values.append(value)
            offsets.append(offset)
        check_records(topic, number, keys, values, offsets)
        self.position = batch.offsets[-1] + 1
        if keys:
            self._into.load([self._prefix + key for key in keys], values)


def replayed(ticket: Ticket, replay: Replay, still: Callable[[], None]) -> Generator[None, None, None]:
    """Runs the replay to its end, and yields after each step, so that the worker's loop can continue.

    After each yield, it calls the function ``still``, which raises an error if the replay must stop.
    """
    before = ticket.done
    while not replay.done:
        replay.step()
        ticket.done = before + replay.position
        yield
        still()


def bounds_of(cluster: Cluster, changelog: str, upto: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Maps each partition of a changelog to its first offset and its high watermark.

    The caller replays the changelog up to this high watermark, so no worker may write to the changelog meanwhile.

    Raises CommandWrong if the changelog does not exist, has lost its first records, or ends before the expected end
    offsets in ``upto``.
    """
    topics = cluster.topics()
    if changelog not in topics.describe([changelog]):
        raise CommandWrong(f"Changelog {changelog} does not exist.", action="Correct its name.", topic=changelog)
    starts, ends = topics.start_offsets(changelog), topics.end_offsets(changelog, committed=False)
    bounds = {}
    for number, expected in upto.items():
        start, end = starts.get(number), ends.get(number)
        if start is None or end is None:
            raise CommandWrong(
                f"Changelog {changelog} has no partition {number}; it has {sorted(starts)}.",
                action="Name only partitions that both changelogs have.",
                topic=changelog,
            )
        if start > 0:
            raise CommandWrong(
                f"Changelog {changelog}[{number}] begins at offset {start}, so its first records are lost; expected 0.",
                action="Rebuild it from its source.",
                topic=changelog,
                seen=start,
                expected=0,
            )
        if end < expected:
            raise CommandWrong(
                f"Changelog {changelog}[{number}] ends at offset {end}; expected {expected} or later.",
                action=f"Give {end}, the offset where it ends.",
                topic=changelog,
                seen=end,
                expected=expected,
            )
        bounds[number] = start, end
    return bounds
