"""Computes the heirs of each partition: the group members that get the partition if its current owner leaves.

Kafka's assignors are pure functions of members and partitions. Every worker can therefore compute the same heirs from
Kafka's description of the group. The workers exchange no messages for this. This module reimplements the client
library's assignors ``range``, ``roundrobin`` and ``cooperative-sticky``, for members that all read the same topics,
without racks.

Invariants:
    - The owner of a partition is never its own heir, and each member is at most once among the heirs of a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from holdfast.infra.kafka.records import GroupShares, Partition

Shares = Mapping[str, AbstractSet[Partition]]


def heirs(group: GroupShares, replicas: int) -> dict[Partition, tuple[str, ...]]:
    """Returns the heirs of every partition, in order.

    The first heir gets the partition if the owner leaves. The second heir gets it if the owner and the first heir
    leave. Each partition has at most ``replicas`` heirs, and fewer if the group has fewer other members.
    """
    after: dict[frozenset[str], Shares] = {}
    found: dict[Partition, tuple[str, ...]] = {}
    for owner, owned in group.members.items():
        for partition in owned:
            gone = [owner]
            while len(gone) <= replicas and len(gone) < len(group.members):
                key = frozenset(gone)
                if key not in after:
                    after[key] = _shares_without(group, key)
                gone.append(next(member for member, share in after[key].items() if partition in share))
            found[partition] = tuple(gone[1:])
    return found


def inherited_by(member: str, group: GroupShares, replicas: int) -> set[Partition]:
    """Returns the partitions for which this member is one of the heirs."""
    return {partition for partition, after in heirs(group, replicas).items() if member in after}


def shares_after(group: GroupShares, known: Collection[str], expected: Collection[str]) -> Shares | None:
    """Returns the partitions of every member after a planned change of workers, by member id.

    Returns None if the partitions can't be computed. This is the case with the sticky assignor if a member has not
    joined yet, because the assignor uses data that members exchange. For a member that has not joined yet, the member
    id is its client id and a dash. Members whose client id is not in ``known`` are expected to stay.

    Args:
        group: The current members and their partitions.
        known: The client ids of all members that may join or leave.
        expected: The client ids in ``known`` that are members after the change.
    """

    def client_of(member: str) -> str | None:
        found = [client for client in known if member.startswith(f"{client}-")]
        return max(found, key=len, default=None)

    clients = {member: client_of(member) for member in group.members}
    left = [member for member, client in clients.items() if client is None or client in expected]
    new = [f"{client}-" for client in expected if client not in clients.values()]
    if not left and not new:
        return None
    if "cooperative" in group.assignor or "sticky" in group.assignor:
        return None if new else _sticky(group.members, group.members.keys() - set(left))
    partitions = sorted(partition for owned in group.members.values() for partition in owned)
    members = sorted([*left, *new])
    return _in_turns(members, partitions) if group.assignor == "roundrobin" else _range(members, partitions)


def _shares_without(group: GroupShares, gone: AbstractSet[str]) -> Shares:
    if "cooperative" in group.assignor or "sticky" in group.assignor:
        return _sticky(group.members, gone)
    partitions = sorted(partition for owned in group.members.values() for partition in owned)
    left = sorted(group.members.keys() - gone)
    return _in_turns(left, partitions) if group.assignor == "roundrobin" else _range(left, partitions)


def _range(members: list[str], partitions: list[Partition]) -> Shares:
    """Reimplements Kafka's range assignor: each member gets consecutive partitions of every topic, in member id order.

    If the partitions can't be divided equally, the first members get one partition more.
    """
    shares: dict[str, set[Partition]] = {member: set() for member in members}
    for topic in {partition.topic for partition in partitions}:
        numbers = [partition for partition in partitions if partition.topic == topic]
        each, more = divmod(len(numbers), len(members))
        first = 0
        for place, member in enumerate(members):
            last = first + each + (place < more)
            shares[member].update(numbers[first:last])
            first = last
    return shares


def _in_turns(members: list[str], partitions: list[Partition]) -> Shares:
    """Kafka's round-robin assignor: members get the partitions of all topics in turn, in member id order."""
    return {member: set(partitions[place :: len(members)]) for place, member in enumerate(members)}


def _sticky(members: Shares, gone: AbstractSet[str]) -> Shares:
    """Kafka's sticky assignor: members keep their partitions, and a free partition goes to the member with the fewest.

    The free partitions are assigned in descending order. If several members have the fewest partitions, the smallest
    member id gets the partition.
    """
    shares = {member: set(owned) for member, owned in members.items() if member not in gone}
    for partition in sorted((partition for member in gone for partition in members[member]), reverse=True):
        shares[min(shares, key=lambda member: (len(shares[member]), member))].add(partition)
    return shares
