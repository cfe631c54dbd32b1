"""The consumers of the in-memory cluster: a member of a consumer group, and a consumer that replays changelogs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from holdfast.infra.kafka.clients.message_headers import MessageHeaders
from holdfast.infra.kafka.clients.read_ends import ReadEnds
from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed, MembershipLost, OutcomeUnknown, TopicUnusable
from holdfast.infra.kafka.records import Batch, GroupMetadata, Headers, Partition
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, GroupMember, OnPartitions
from holdfast.processors.testing.broker import Broker
from holdfast.processors.testing.groups import Group, Member
from holdfast.processors.testing.log import Entry
from holdfast.processors.testing.network import Fate
from holdfast.processors.testing.process import Process

#: The timeouts of the real consumer, in seconds: for reading committed offsets, and for committing offsets.
LOOKUP_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S = 30.0


class InMemoryMember(GroupMember):
    """A group member that fetches records in the same order as the real client library.

    After an assignment, seek or resume of a partition, the next poll sends a fetch request for it. Requests that were
    sent earlier are answered first. If several partitions wait for their first answer, each poll returns one of these
    answers. Until a partition is answered, its known end offset is that of its last fetch.
    """

    def __init__(self, broker: Broker, process: Process, group: str, client_id: str) -> None:
        self._broker = broker
        self._process = process
        self._group: Group = broker.group(group)
        self._client_id = client_id
        self._member: Member | None = None
        self._positions: dict[Partition, int] = {}
        #: Partition -> offset after the last record that ``poll`` returned, or the target of a later seek.
        self._handed: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._fetched_ends: dict[Partition, int] = {}
        self._ends = ReadEnds()
        #: Partitions without a record yet: their fetch request is not sent, or its first answer has not arrived.
        self._unasked: set[Partition] = set()
        self._asked: list[Partition] = []
        self._down_since: float | None = None
        self._next = 0

    def subscribe(
        self, topics: Sequence[str], on_assign: OnPartitions, on_revoke: OnPartitions, on_lost: OnPartitions
    ) -> None:
        self._topics = tuple(topics)
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._process.point("subscribe")
        self._member = self._group.join(self._process, self._topics, self._client_id)

    def poll(self, records_max: int, timeout_s: float) -> list[Batch]:
        self._process.point("poll")
        batches = self._look(records_max)
        if not batches and timeout_s > 0:
            for _ in range(len(self._asked)):  # In one poll, each sent request is checked for an answer at most once.
                if batches := self._look(records_max):
                    return batches
            self._process.sleep(timeout_s)
            batches = self._look(records_max)
        return batches

    @property
    def brokers_down_s(self) -> float:
        return 0.0 if self._down_since is None else self._broker.clock.monotonic() - self._down_since

    def broker_answered(self) -> None:
        self._down_since = None

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        self._process.point("committed:before")

        def settled() -> bool:
            return self._broker.network.brokers_up and not self._group.has_pending(partitions)

        if not self._broker.passes(self._process, settled, LOOKUP_TIMEOUT_S):
            raise BrokerUnreachable(
                f"The committed offsets of {len(partitions)} partitions could not be read in time.",
                action="Start the broker; processing then continues at the committed offsets.",
            )
        found = {partition: self._group.committed.get(partition) for partition in partitions}
        self._process.point("committed:after")
        return found

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._paused.update(partitions)
        self._begin(partitions)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._paused.difference_update(partitions)
        self._begin(partitions)

    def seek(self, partition: Partition, offset: int) -> None:
        member = self._member
        if member is None or partition not in member.owned:
            raise KafkaFailed(
                f"Seeking {partition.topic}[{partition.number}] to {offset} failed: it is not assigned.",
                action="Restart the processor.",
                topic=partition.topic,
                partition=partition.number,
            )
        self._positions[partition] = self._handed[partition] = offset
        self._begin([partition])

    def _begin(self, partitions: Sequence[Partition]) -> None:
        """Sends fetch requests for these partitions in the next poll, and drops the answers to earlier requests."""
        self._ends.begin(partitions)
        self._unasked.update(partitions)
        self._asked = [partition for partition in self._asked if partition not in self._unasked]

    def high_watermark(self, partition: Partition) -> int | None:
        return self._fetched_ends.get(partition)

    def is_ended(self, partition: Partition) -> bool:
        return self._ends.is_ended(partition, self._positions.get(partition), self._fetched_ends.get(partition))

    def without_records(self, partition: Partition, position: int) -> int | None:
        return self._ends.without_records(partition, position) if self._handed.get(partition) == position else None

    def group_metadata(self) -> GroupMetadata:
        member = self._member
        if member is None or member.generation < 0 or member.learned:
            raise MembershipLost(
                "This worker is no longer a member of its consumer group.",
                action="Nothing is lost: it joins again, and the records are processed by their new owner.",
            )
        return self._group, member.member_id, member.generation

    @property
    def member_id(self) -> str | None:
        return None if self._member is None else self._member.member_id

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self._process.point("commit_offsets:before")
        _, member_id, generation = self.group_metadata()
        fate = self._broker.network.fate(self._process.name, "commit_offsets")
        up = self._broker.network.brokers_up
        if up and fate in (Fate.OK, Fate.REPLY_LOST):
            refusal = self._group.refusal(member_id, generation)
            if refusal is not None:
                raise MembershipLost(
                    f"Committing offsets was refused: {refusal}.",
                    action="Nothing is lost: the records are processed again by the partition's owner.",
                    error=refusal,
                )
            self._group.committed.update(offsets)
        if fate is Fate.DELAYED:
            late = partial(self._commit_late, dict(offsets), member_id, generation)
            self._broker.clock.call_later(self._broker.network.delay_s, late)
        if not up or fate is not Fate.OK:
            self._process.sleep(COMMIT_TIMEOUT_S)
            raise OutcomeUnknown(
                "Committing offsets got no answer in time.",
                action="Nothing: the engine reads the committed offsets and continues there.",
            )
        self._process.point("commit_offsets:after")

    def close(self) -> None:
        """Leaves the group immediately."""
        self._process.point("close")
        member, self._member = self._member, None
        if member is None:
            return
        if member.owned:
            self._on_revoke(sorted(member.owned))
        member.closed = True
        if self._broker.network.brokers_up:
            self._group.leave(member)

    def _commit_late(self, offsets: Mapping[Partition, int], member_id: str, generation: int) -> None:
        if self._group.refusal(member_id, generation) is None:
            self._group.committed.update(offsets)

    def _look(self, records_max: int) -> list[Batch]:
        if not self._broker.network.brokers_up:
            if self._down_since is None:
                self._down_since = self._broker.clock.monotonic()
            return []
        self._down_since = None
        self._serve_rebalance()
        return self._fetch(records_max)

    def _serve_rebalance(self) -> None:
        member = self._member
        assert member is not None
        if self._was_thrown_out(member):
            return
        if self._group.preparing and not member.joined:
            member.given = None  # This assignment belongs to the previous generation of the group, so it is dropped.
            if self._broker.assignor != "cooperative-sticky":
                self._take_away(member, member.owned)
                if self._was_thrown_out(member):
                    return
            self._group.join_again(member)
        if member.given is not None:
            given, member.given = member.given, None
            self._take_over(member, given)

    def _take_over(self, member: Member, given: frozenset[Partition]) -> None:
        gone = member.owned - given
        if gone:
            self._take_away(member, gone)
            if self._was_thrown_out(member):
                return
            self._group.rebalance(member)
        held = {partition for other in self._group.members if other is not member for partition in other.owned}
        new = given - member.owned - held
        member.owned |= new
        self._paused |= new
        self._on_assign(sorted(new))

    def _take_away(self, member: Member, partitions: set[Partition] | frozenset[Partition]) -> None:
        if partitions:
            self._on_revoke(sorted(partitions))
        self._forget(member, partitions)

    def _was_thrown_out(self, member: Member) -> bool:
        if not member.thrown_out:
            return False
        member.learned = True
        lost = sorted(member.owned)
        self._forget(member, member.owned)
        if lost:
            self._on_lost(lost)
        self._member = self._group.join(self._process, self._topics, self._client_id)
        return True

    def _forget(self, member: Member, partitions: set[Partition] | frozenset[Partition]) -> None:
        self._begin(list(partitions))
        for partition in list(partitions):
            self._positions.pop(partition, None)
            self._paused.discard(partition)
            member.owned.discard(partition)

    def _fetch(self, records_max: int) -> list[Batch]:
        assert self._member is not None
        batches, room = [], records_max
        flowing = [part for part in sorted(self._member.owned) if part not in self._paused and part in self._positions]
        self._next += 1
        self._asked = self._asked[1:] + [partition for partition in flowing if partition in self._unasked]
        self._unasked.difference_update(self._asked)
        waiting = frozenset(self._asked)
        turn = self._next % len(flowing) if flowing else 0
        for partition in flowing[turn:] + flowing[:turn]:
            if room <= 0:
                break
            if partition in waiting:
                continue
            if partition.topic not in self._broker.topics:
                raise TopicUnusable(
                    f"Input topic {partition.topic} is missing.",
                    action="Create the topic, or let Holdfast create it (auto_create_topics=True).",
                    topic=partition.topic,
                )
            log, position = self._broker.log(partition), self._positions[partition]
            if not log.start <= position <= log.end:
                raise KafkaFailed(
                    f"Reading the inputs was refused: offset {position} of {partition.topic}[{partition.number}] is "
                    f"out of range ({log.start} to {log.end}).",
                    action="Check the rights of this client, and that the committed offsets are still in the topic.",
                    error="_AUTO_OFFSET_RESET",
                )
            entries, self._positions[partition] = log.read(position, room, committed=True)
            self._fetched_ends[partition] = log.end
            self._ends.told(partition, self._positions[partition])
            if entries:
                room -= len(entries)
                self._handed[partition] = entries[-1].offset + 1
                batches.append(batch_of(partition, entries))
        return batches


class InMemoryReplayer(ChangelogReplayer):
    """A consumer that reads changelogs to restore state."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process
        self._starts: dict[Partition, int] = {}
        self._positions: dict[Partition, int] = {}

    def assign(self, starts: Mapping[Partition, int], timed: Collection[str] = ()) -> None:
        self._starts = dict(starts)
        self._positions = {}

    def drop(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._starts.pop(partition, None)

    def poll(self, records_max: int, timeout_s: float) -> tuple[list[Batch], dict[Partition, int]]:
        self._process.point("replay")
        batches, ends = self._look(records_max)
        if not batches and timeout_s > 0:
            self._process.sleep(timeout_s)
        return batches, ends

    def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {partition: self._positions[partition] for partition in partitions if partition in self._positions}

    def close(self) -> None:
        pass

    def _look(self, records_max: int) -> tuple[list[Batch], dict[Partition, int]]:
        batches: list[Batch] = []
        ends: dict[Partition, int] = {}
        if not self._broker.network.brokers_up:
            return batches, ends
        for partition, start in self._starts.items():
            log = self._broker.log(partition)
            position = self._positions.get(partition, start)
            if not log.start <= position <= log.end:
                raise KafkaFailed(
                    f"Changelog {partition.topic}[{partition.number}] can't be read on: offset {position} is out of "
                    f"range ({log.start} to {log.end}).",
                    action="See `holdfast status`; the changelog may have been truncated or deleted.",
                    topic=partition.topic,
                    partition=partition.number,
                )
            entries, reached = log.read(position, records_max, committed=True)
            if reached > position:
                self._positions[partition] = reached
            if entries:
                batches.append(batch_of(partition, entries))
            if len(entries) < records_max:
                ends[partition] = log.last_stable
        return batches, ends


def batch_of(partition: Partition, entries: Sequence[Entry]) -> Batch:
    """Converts entries of one partition to a batch."""
    offsets = [entry.offset for entry in entries]
    return Batch(
        partition,
        [entry.key for entry in entries],
        [entry.value for entry in entries],
        [entry.timestamp_ms for entry in entries],
        offsets,
        MessageHeaders(partition, offsets, entries, _headers_of),
    )


def _headers_of(entry: Entry) -> Headers:
    """Returns the headers of an entry. Raises ValueError if a name is not UTF-8, as the client library does."""
    for name, _ in entry.headers or ():
        name.encode()
    return entry.headers
