"""The worker that takes over a partition next (its heir), computed only from the group's description."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import GroupShares, Partition
from holdfast.infra.kafka.topics.group_protocol import decode_assignment
from holdfast.processors.engine.runtime.ownership.heirs import heirs, inherited_by, shares_after


@st.composite
def groups(draw: st.DrawFn) -> GroupShares:
    """Members with random ids that own the partitions of some topics, as a sticky assignor may leave them."""
    names = draw(st.lists(st.text("abcdef-0123456789", min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
    counts = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    partitions = [Partition(f"t{topic}", number) for topic, count in enumerate(counts) for number in range(count)]
    owners = [draw(st.sampled_from(names)) for _ in partitions]
    shares = {
        name: frozenset(p for p, owner in zip(partitions, owners, strict=True) if owner == name) for name in names
    }
    return GroupShares(draw(st.sampled_from(["range", "roundrobin", "cooperative-sticky"])), shares)


def owner_of(group: GroupShares, partition: Partition) -> str:
    return next(name for name, owned in group.members.items() if partition in owned)


@given(groups(), st.integers(0, 7))
def test_every_partition_has_as_many_heirs_as_there_can_be_and_never_its_owner(
    group: GroupShares, replicas: int
) -> None:
    found = heirs(group, replicas)
    assert set(found) == {partition for owned in group.members.values() for partition in owned}
    for partition, after in found.items():
        assert len(after) == min(replicas, len(group.members) - 1)
        assert len(set(after)) == len(after)
        assert owner_of(group, partition) not in after


@given(groups(), st.integers(1, 3))
def test_all_processes_agree_whatever_order_they_are_told_the_members_in(group: GroupShares, replicas: int) -> None:
    turned = GroupShares(group.assignor, dict(reversed(group.members.items())))
    assert heirs(turned, replicas) == heirs(group, replicas)
    by_member = {name: inherited_by(name, group, replicas) for name in group.members}
    for partition, after in heirs(group, replicas).items():
        assert {name for name, inherited in by_member.items() if partition in inherited} == set(after)


@given(groups())
def test_the_next_heir_is_the_first_one_once_the_first_has_the_partition(group: GroupShares) -> None:
    """With the range assignor, the first heir takes over the partition when its owner leaves.

    The second heir then becomes the first.
    """
    for partition, after in heirs(GroupShares("range", group.members), 2).items():
        if len(after) == 2:
            owner, everything = owner_of(group, partition), frozenset().union(*group.members.values())
            left = {name: frozenset[Partition]() for name in group.members if name != owner}
            gone = GroupShares("range", {**left, after[0]: everything})
            assert heirs(gone, 1)[partition] == (after[1],)


def test_range_gives_runs_of_partitions_in_the_order_of_member_ids() -> None:
    def places(*numbers: int) -> frozenset[Partition]:
        return frozenset(Partition("t", number) for number in numbers)

    group = GroupShares("range", {"b": places(2, 3), "a": places(0, 1), "c": places(4)})
    assert {part.number: after for part, after in heirs(group, 2).items()} == {
        0: ("b", "c"),
        1: ("b", "c"),
        2: ("a", "c"),
        3: ("c", "a"),
        4: ("b", "a"),
    }


def assignment(*topics: tuple[bytes, list[int]], extra: bytes = b"\xff\xff\xff\xff") -> bytes:
    raw = struct.pack(">hi", 1, len(topics))
    for name, numbers in topics:
        raw += struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers)
    return raw + extra


def test_the_protocols_bytes_are_read() -> None:
    assert decode_assignment(b"") == frozenset()
    raw = assignment((b"orders", [0, 3]), ("grüße".encode(), [7]), extra=b"\0\0\0\2xy")
    assert decode_assignment(raw) == {Partition("orders", 0), Partition("orders", 3), Partition("grüße", 7)}


@given(st.binary(min_size=1, max_size=40))
def test_bytes_of_something_else_are_refused_or_read_never_anything_worse(raw: bytes) -> None:
    with suppress(KafkaFailed):
        decode_assignment(raw)


def test_an_assignment_that_is_cut_off_is_refused() -> None:
    with pytest.raises(KafkaFailed, match="do not follow the consumer protocol"):
        decode_assignment(assignment((b"orders", [0, 3]), extra=b"")[:-2])


def known(group: GroupShares) -> GroupShares:
    """Return the group with member ids as a broker creates them from client ids."""
    return GroupShares(group.assignor, {f"{name}-4f1c": owned for name, owned in group.members.items()})


@given(groups(), st.sets(st.text("uvwxyz", min_size=1, max_size=3), max_size=3))
def test_after_a_change_every_partition_has_one_owner_who_is_there(group: GroupShares, new: set[str]) -> None:
    now = known(group)
    stays = set(sorted(group.members)[: len(group.members) // 2])
    expected = stays | {f"{name}!" for name in new}
    after = shares_after(now, {*group.members, *expected}, expected)
    if after is None:
        assert not expected or ("sticky" in group.assignor and new)
        return
    owned = sorted(partition for share in after.values() for partition in share)
    assert owned == sorted(partition for share in group.members.values() for partition in share)
    assert set(after) <= {f"{name}-4f1c" for name in stays} | {f"{name}!-" for name in new}


def test_a_newcomer_gets_what_the_assignor_will_give_it() -> None:
    ours = frozenset(Partition("t", number) for number in range(4))
    group = GroupShares("range", {"b-4f1c": ours})
    after = shares_after(group, {"a", "b"}, {"a", "b"})
    assert after == {"a-": {Partition("t", 0), Partition("t", 1)}, "b-4f1c": {Partition("t", 2), Partition("t", 3)}}


def test_members_of_another_machine_stay() -> None:
    shares = {"ours-1": frozenset({Partition("t", 0)}), "theirs-1": frozenset({Partition("t", 1)})}
    after = shares_after(GroupShares("range", shares), {"ours"}, set())
    assert after == {"theirs-1": {Partition("t", 0), Partition("t", 1)}}
