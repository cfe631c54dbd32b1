"""The group coordinator of the in-memory cluster: members, generations, rebalances, committed offsets.

    EMPTY ──join──► PREPARING ──every live member joined again──► STABLE ──join, leave, expiry──► PREPARING

The coordinator accepts offsets from members of the current generation, also while it prepares a rebalance. It accepts
offsets without a generation only if the group is empty. The coordinator does not check whether a member owns the
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from holdfast.infra.kafka.records import GroupShares, Partition
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.network import Network
from holdfast.processors.testing.process import Process

#: The supported assignment strategies (``partition.assignment.strategy``). All members of a group have the same
#: strategy.
Assignor = Literal["range", "roundrobin", "cooperative-sticky"]

SESSION_TIMEOUT_S = 10.0
#: Maximum seconds from the start of a rebalance until a member has rejoined. After this time, the member is removed.
REBALANCE_TIMEOUT_S = 60.0
#: Seconds from the time when the last member has joined until the rebalance ends.
JOIN_DELAY_S = 0.05
_TICK_S = 1.0


@dataclass(eq=False, slots=True)
class Member:
    """A member of a group.

    The coordinator sets ``generation`` (of the group, when the member last got its partitions) and ``thrown_out``
    (whether the member was removed). ``learned`` says whether the member knows about its removal. A ``closed`` member
    sends no heartbeats, even if its leave request was lost.
    """

    member_id: str
    process: Process
    topics: tuple[str, ...]
    client_id: str
    owned: set[Partition] = field(default_factory=set)
    generation: int = -1
    joined: bool = True
    thrown_out: bool = False
    learned: bool = False
    closed: bool = False
    given: frozenset[Partition] | None = None
    share: frozenset[Partition] = frozenset()
    seen_at: float = 0.0


class Group:
    """One consumer group.

    Args:
        clock: The virtual clock.
        network: The network. Heartbeats arrive only while its brokers are up.
        partitions_of: A function that returns the partitions of a topic.
        assignor: A function that returns the assignment strategy. With ``cooperative-sticky``, members keep partitions
            that a rebalance does not move.
    """

    def __init__(
        self,
        clock: VirtualClock,
        network: Network,
        partitions_of: Callable[[str], Sequence[Partition]],
        assignor: Callable[[], Assignor],
    ) -> None:
        self._clock = clock
        self._network = network
        self._partitions_of = partitions_of
        self._assignor = assignor
        self._numbers = 0
        self._rebalances = 0
        self._ticking = False
        self.generation = 0
        self.preparing = False
        self.members: list[Member] = []
        self._out: list[Member] = []
        self.committed: dict[Partition, int] = {}
        self.pending: dict[int, dict[Partition, int]] = {}

    def join(self, process: Process, topics: tuple[str, ...], client_id: str) -> Member:
        """Adds a member and starts a rebalance. The member receives its partitions at the end of the rebalance."""
        self._numbers += 1
        member = Member(f"member-{self._numbers:06d}", process, topics, client_id, seen_at=self._clock.monotonic())
        self.members.append(member)
        self.rebalance(member)
        if not self._ticking:
            self._ticking = True
            self._clock.call_later(_TICK_S, self._tick)
        return member

    def join_again(self, member: Member) -> None:
        """Records that a member has rejoined in the running rebalance."""
        member.joined = True
        self._complete_if_all_joined()

    def leave(self, member: Member) -> None:
        """Removes a member that asked to leave."""
        if member in self.members:
            self._remove(member)

    def rebalance(self, *ready: Member) -> None:
        """Starts a rebalance. All members must join again, except the ``ready`` members, which count as joined."""
        if not self.preparing:
            self.preparing = True
            self._rebalances += 1
            number = self._rebalances
            for member in self.members:
                member.joined = False
            self._clock.call_later(REBALANCE_TIMEOUT_S, lambda: self._complete(number))
        for member in ready:
            member.joined = True
        self._complete_if_all_joined()

    def refusal(self, member_id: str, generation: int) -> str | None:
        """The error code with which the coordinator refuses offsets of this member; None if it accepts them."""
        if generation < 0:
            return "UNKNOWN_MEMBER_ID" if self.members else None
        if all(member.member_id != member_id for member in self.members):
            return "UNKNOWN_MEMBER_ID"
        return "ILLEGAL_GENERATION" if generation != self.generation else None

    def told(self) -> GroupShares | None:
        """Returns the partitions of each member; None during a rebalance, and for an empty group."""
        if self.preparing or not self.members:
            return None
        return GroupShares(self._assignor(), {member.member_id: member.share for member in self.members})

    def has_pending(self, partitions: Sequence[Partition]) -> bool:
        """Whether an open transaction includes offsets of these partitions."""
        return any(partition in offsets for offsets in self.pending.values() for partition in partitions)

    def settle(self, producer_id: int, offsets: Mapping[Partition, int], commit: bool) -> None:
        """Ends a producer's transaction: applies its offsets to this group if ``commit``, otherwise drops them."""
        self.pending.pop(producer_id, None)
        if commit:
            self.committed.update(offsets)

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        if self.members:
            self.rebalance()
        else:
            self.preparing = False
            self.generation += 1

    def _complete_if_all_joined(self) -> None:
        if self.preparing and all(member.joined for member in self.members):
            number = self._rebalances
            self._clock.call_later(JOIN_DELAY_S, lambda: self._complete(number, early=True))

    def _complete(self, number: int, *, early: bool = False) -> None:
        if not self.preparing or number != self._rebalances:
            return
        late = [member for member in self.members if not member.joined]
        if early and late:
            return
        for member in late:
            member.thrown_out = True
            self._out.append(member)
            self.members.remove(member)
        self.preparing = False
        self.generation += 1
        shares = self._shares()
        for member in self.members:
            member.generation = self.generation
            member.given = member.share = frozenset(shares[member.member_id])

    def _shares(self) -> dict[str, set[Partition]]:
        shares: dict[str, set[Partition]] = {member.member_id: set() for member in self.members}
        if self._assignor() == "roundrobin":
            self._share_in_turns(shares)
            return shares
        for topic in sorted({topic for member in self.members for topic in member.topics}):
            readers = [member for member in self.members if topic in member.topics]
            partitions = sorted(self._partitions_of(topic))
            if self._assignor() == "cooperative-sticky":
                self._share_sticky(shares, readers, partitions)
            else:
                each, more = divmod(len(partitions), len(readers))
                for place, member in enumerate(readers):
                    first = place * each + min(place, more)
                    shares[member.member_id].update(partitions[first : first + each + (place < more)])
        return shares

    def _share_in_turns(self, shares: dict[str, set[Partition]]) -> None:
        """Assigns partitions to members in turns, in the order of the member ids, as the client library does."""
        members = sorted(self.members, key=lambda member: member.member_id)
        place = -1
        for topic in sorted({topic for member in members for topic in member.topics}):
            for partition in sorted(self._partitions_of(topic)):
                place = (place + 1) % len(members)
                while topic not in members[place].topics:
                    place = (place + 1) % len(members)
                shares[members[place].member_id].add(partition)

    def _share_sticky(
        self, shares: dict[str, set[Partition]], readers: list[Member], partitions: list[Partition]
    ) -> None:
        most = -(-len(partitions) // len(readers))
        left = []
        for partition in partitions:
            owner = next((member for member in readers if partition in member.owned), None)
            if owner is not None and len(shares[owner.member_id]) < most:
                shares[owner.member_id].add(partition)
            else:
                left.append(partition)
        for partition in reversed(left):
            shares[min(readers, key=lambda member: len(shares[member.member_id])).member_id].add(partition)

    def _tick(self) -> None:
        """Records the heartbeats of processes that are not frozen, and removes members with an expired session."""
        now = self._clock.monotonic()
        if self._network.brokers_up:
            for member in list(self.members):
                if now - member.seen_at > SESSION_TIMEOUT_S:
                    member.thrown_out = True
                    self._out.append(member)
                    self._remove(member)
                elif not (member.process.frozen or member.closed):
                    member.seen_at = now
            for member in [member for member in self._out if not member.process.frozen]:
                member.learned = True
                self._out.remove(member)
        if self.members or any(not member.process.frozen for member in self._out):
            self._clock.call_later(_TICK_S, self._tick)
        else:
            self._ticking = False
