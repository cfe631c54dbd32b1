"""Consumer groups of the in-memory cluster: generations, sessions, eager and cooperative rebalances, assignors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.infra.kafka.errors import KafkaFailed, MembershipLost
from holdfast.infra.kafka.records import Partition
from holdfast.processors.testing import InlineProcess, InMemoryCluster
from holdfast.processors.testing.groups import REBALANCE_TIMEOUT_S, SESSION_TIMEOUT_S, Assignor, Group

Told = list[tuple[str, tuple[int, ...]]]


class Reader:
    """A group member in a simulated process of its own."""

    def __init__(self, cluster: InMemoryCluster, name: str) -> None:
        self.process = InlineProcess(cluster.clock, name)
        self.member = cluster.connect(self.process).group_consumer("group", "client")
        self.told: Told = []
        self.owned: set[int] = set()
        self.member.subscribe(["in"], self._assigned, self._revoked, self._lost)

    def poll(self) -> None:
        self.member.poll(100, 0.0)

    def _assigned(self, partitions: list[Partition]) -> None:
        self.told.append(("assign", numbers(partitions)))
        self.owned.update(numbers(partitions))

    def _revoked(self, partitions: list[Partition]) -> None:
        self.told.append(("revoke", numbers(partitions)))
        self.owned.difference_update(numbers(partitions))

    def _lost(self, partitions: list[Partition]) -> None:
        self.told.append(("lost", numbers(partitions)))
        self.owned.difference_update(numbers(partitions))


def numbers(partitions: list[Partition]) -> tuple[int, ...]:
    return tuple(sorted(partition.number for partition in partitions))


class World:
    """A cluster and a group that reads a topic with four partitions."""

    def __init__(self, assignor: Assignor = "range") -> None:
        self.cluster = InMemoryCluster()
        self.cluster.assignor = assignor
        self.cluster.create_topic("in", partitions=4)

    def reader(self, name: str) -> Reader:
        return Reader(self.cluster, name)

    def turn(self, *readers: Reader, seconds: float = 3.0) -> None:
        """Let all members poll for a while. A partition must never have two owners."""
        end = self.cluster.clock.monotonic() + seconds
        while self.cluster.clock.monotonic() < end:
            for reader in readers:
                reader.poll()
                owned = [number for each in readers for number in each.owned]
                assert len(owned) == len(set(owned)), "a partition has two owners"
            self.cluster.clock.advance_to(self.cluster.clock.monotonic() + 0.1)


@pytest.fixture(params=["range", "roundrobin", "cooperative-sticky"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    return World(request.param)  # type: ignore[return-value]


def test_members_share_all_partitions(world: World) -> None:
    readers = [world.reader(name) for name in "abc"]
    world.turn(*readers)
    assert sorted(number for reader in readers for number in reader.owned) == [0, 1, 2, 3]
    assert {len(reader.owned) for reader in readers} <= {1, 2}


def test_a_member_more_than_partitions_idles(world: World) -> None:
    readers = [world.reader(name) for name in "abcde"]
    world.turn(*readers)
    assert sorted(len(reader.owned) for reader in readers) == [0, 1, 1, 1, 1]


def test_eager_members_let_go_of_everything_first() -> None:
    world = World()
    first = world.reader("first")
    world.turn(first)
    second = world.reader("second")
    world.turn(first, second)
    assert first.told == [("assign", (0, 1, 2, 3)), ("revoke", (0, 1, 2, 3)), ("assign", (0, 1))]
    assert second.told == [("assign", (2, 3))]


def test_cooperative_members_keep_what_stays_theirs() -> None:
    world = World("cooperative-sticky")
    first = world.reader("first")
    world.turn(first)
    second = world.reader("second")
    world.turn(first, second)
    assert [told for told in first.told if told[1]] == [("assign", (0, 1, 2, 3)), ("revoke", (2, 3))]
    assert [told for told in second.told if told[1]] == [("assign", (2, 3))]


def test_round_robin_deals_partitions_one_by_one() -> None:
    world = World("roundrobin")
    first, second = world.reader("first"), world.reader("second")
    world.turn(first, second)
    assert (first.owned, second.owned) == ({0, 2}, {1, 3})


def test_a_member_that_leaves_lets_go_and_the_others_take_over(world: World) -> None:
    first, second = world.reader("first"), world.reader("second")
    world.turn(first, second)
    owned = tuple(sorted(first.owned))
    first.member.close()
    assert first.told[-1] == ("revoke", owned)
    world.turn(second)
    assert second.owned == {0, 1, 2, 3}


def test_a_frozen_process_loses_its_place_after_its_session(world: World) -> None:
    first, second = world.reader("first"), world.reader("second")
    world.turn(first, second)
    owned = tuple(sorted(first.owned))
    first.process.frozen = True
    world.turn(second, seconds=SESSION_TIMEOUT_S - 3.0)
    assert len(second.owned) == 2
    world.turn(second, seconds=8.0)
    assert second.owned == {0, 1, 2, 3}
    first.process.frozen = False
    first.poll()
    assert first.told[-1] == ("lost", owned)
    world.turn(first, second)
    assert len(first.owned) == 2


def test_a_thawed_process_believes_itself_a_member_until_its_next_heartbeat() -> None:
    world = World()
    first, second = world.reader("first"), world.reader("second")
    world.turn(first, second)
    first.process.frozen = True
    world.turn(second, seconds=SESSION_TIMEOUT_S + 5.0)
    first.process.frozen = False
    first.member.group_metadata()
    with pytest.raises(KafkaFailed):
        first.member.commit({Partition("in", 0): 99})
    world.cluster.clock.advance_to(world.cluster.clock.monotonic() + 2.0)
    with pytest.raises(MembershipLost):
        first.member.group_metadata()
    assert world.cluster.committed_offsets("group") == {}


def test_a_member_that_closed_while_no_broker_answered_is_out_after_its_session(world: World) -> None:
    gone, heir = world.reader("gone"), world.reader("heir")
    world.turn(gone, heir)
    world.cluster.network.brokers_up = False
    gone.member.close()
    world.cluster.network.brokers_up = True
    world.turn(heir, seconds=SESSION_TIMEOUT_S + 5.0)
    assert heir.owned == {0, 1, 2, 3}


def test_a_living_member_keeps_its_place_without_polling_for_a_session(world: World) -> None:
    first = world.reader("first")
    world.turn(first)
    told = list(first.told)
    world.cluster.clock.advance_to(world.cluster.clock.monotonic() + 5 * SESSION_TIMEOUT_S)
    first.poll()
    assert first.told == told


def test_who_does_not_join_again_in_time_is_thrown_out(world: World) -> None:
    first = world.reader("first")
    world.turn(first)
    second = world.reader("second")
    world.turn(second, seconds=REBALANCE_TIMEOUT_S - 1.0)
    assert second.owned == set()
    world.turn(second, seconds=2.0)
    assert second.owned == {0, 1, 2, 3}
    first.poll()
    assert first.told[-1] == ("lost", (0, 1, 2, 3))


def test_a_forced_rebalance_is_a_new_generation(world: World) -> None:
    first = world.reader("first")
    world.turn(first)
    *_, before = first.member.group_metadata()
    world.cluster.rebalance("group")
    world.turn(first)
    *_, after = first.member.group_metadata()
    assert after > before
    assert first.owned == {0, 1, 2, 3}


def test_what_was_given_but_never_taken_is_void_after_the_next_rebalance_began() -> None:
    """A partition that was assigned but not taken is lost at the next rebalance.

    An eager member that did not poll between two rebalances rejoins without partitions, as in Kafka's protocol.
    """
    world = World()
    first = world.reader("first")
    world.turn(first)
    world.cluster.rebalance("group")
    first.poll()
    world.cluster.clock.advance_to(world.cluster.clock.monotonic() + 1.0)
    world.cluster.rebalance("group")
    first.poll()
    assert first.owned == set()
    world.turn(first)
    assert first.told == [("assign", (0, 1, 2, 3)), ("revoke", (0, 1, 2, 3)), ("assign", (0, 1, 2, 3))]


def test_a_new_topic_of_that_name_is_shared(world: World) -> None:
    cluster = InMemoryCluster()
    reader = Reader(cluster, "early")
    for _ in range(10):
        reader.poll()
        cluster.clock.advance_to(cluster.clock.monotonic() + 0.1)
    assert reader.owned == set()
    cluster.create_topic("in", partitions=2)
    for _ in range(10):
        reader.poll()
        cluster.clock.advance_to(cluster.clock.monotonic() + 0.1)
    assert reader.owned == {0, 1}


# -- from which members the group accepts committed offsets ----------------------------------------------------------


def group_of(world: World) -> Group:
    return world.cluster._broker.group("group")


def test_offsets_without_a_generation_are_taken_from_an_empty_group_only() -> None:
    world = World()
    group = group_of(world)
    assert group.refusal("", -1) is None
    reader = world.reader("first")
    assert group.refusal("", -1) == "UNKNOWN_MEMBER_ID"
    world.turn(reader)
    assert group.refusal("", -1) == "UNKNOWN_MEMBER_ID"
    reader.member.close()
    assert group.refusal("", -1) is None


def test_offsets_of_an_earlier_generation_and_of_strangers_are_refused() -> None:
    world = World()
    first = world.reader("first")
    world.turn(first)
    group, member_id, generation = first.member.group_metadata()
    assert group.refusal(member_id, generation) is None
    assert group.refusal("stranger", generation) == "UNKNOWN_MEMBER_ID"
    second = world.reader("second")
    world.turn(first, second)
    assert group.refusal(member_id, generation) == "ILLEGAL_GENERATION"
    assert group.refusal(member_id, group.generation) is None


def test_offsets_are_taken_while_a_rebalance_is_being_prepared() -> None:
    world = World()
    first = world.reader("first")
    world.turn(first)
    world.reader("second")
    first.member.commit({Partition("in", 1): 5})
    assert world.cluster.committed_offsets("group") == {Partition("in", 1): 5}


def test_offsets_can_be_reset_and_expire() -> None:
    world = World()
    reader = world.reader("first")
    world.turn(reader)
    places = [Partition("in", 0), Partition("in", 1)]
    reader.member.commit(dict.fromkeys(places, 5))
    world.cluster.reset_offsets("group", {places[0]: 2, places[1]: None})
    assert reader.member.committed(places) == {places[0]: 2, places[1]: None}
