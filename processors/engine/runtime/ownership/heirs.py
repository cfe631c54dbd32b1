"""Heirs: the member of a group that gets a partition next when its present owner leaves.

The group's assignor is a pure function of members and partitions, and so is this module: every process computes the
same heirs from the group's description, without messages between processes. It repeats the client library's assignors
(``range``, ``roundrobin`` and ``cooperative-sticky`` for members that all read the same topics, without racks).

Invariants:
    - The owner of a partition is never its own heir, and no member is twice among the heirs of one partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from holdfast.infra.kafka.records import GroupShares, Partition

Shares = Mapping[str, AbstractSet[Partition]]


def heirs(group: GroupShares, replicas: int) -> dict[Partition, tuple[str, ...]]:
    """The heirs of every partition, in order: the first gets it when the owner leaves, the second if the first leaves.

    At most ``replicas`` for each partition; fewer in a group with fewer members.
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
    """The partitions that have this member among their heirs."""
    return {partition for partition, after in heirs(group, replicas).items() if member in after}


def shares_after(group: GroupShares, known: Collection[str], expected: Collection[str]) -> Shares | None:
    """The partitions of every member after a change, by member id; None if no forecast is possible.

    A member that has not joined yet has its client id and a dash as its id. Members whose client id is not in ``known``
    stay. With a sticky assignor, the shares of new members depend on messages between members, so there is no forecast.

    Args:
        group: The group now.
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
    """Give each member a run of every topic's partitions, in member id order; the first members get one more."""
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
    """Deal the partitions of all topics to the members, one each, in the order of member ids."""
    return {member: set(partitions[place :: len(members)]) for place, member in enumerate(members)}


def _sticky(members: Shares, gone: AbstractSet[str]) -> Shares:
    """Each member keeps its partitions; free partitions go, the last first, to the member with the fewest.

    Of several members with the fewest, the one with the smallest id gets it.
    """
    shares = {member: set(owned) for member, owned in members.items() if member not in gone}
    for partition in sorted((partition for member in gone for partition in members[member]), reverse=True):
        shares[min(shares, key=lambda member: (len(shares[member]), member))].add(partition)
    return shares
