"""The open transactions that the successor of a partition's owner aborts, and those that it must not abort."""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.errors import ProducerFenced
from holdfast.processors.engine.runtime.ownership.fencing import LOOK_EVERY_S, FormerOwners
from holdfast.processors.testing import InlineProcess, InMemoryCluster, Network
from holdfast.processors.testing.producer import InMemoryProducer

CHANGELOG = "changelog"
TAKEN, CHANGELOGS = {"in-0": 0}, {"in-0": [CHANGELOG]}


class World:
    """A changelog with two partitions, an owner of both, and a successor that takes over partition 0."""

    def __init__(self) -> None:
        self.network = Network()
        self.cluster = InMemoryCluster(network=self.network)
        self.process = InlineProcess(self.cluster.clock)
        self.view = self.cluster.connect(self.process)
        self.cluster.create_topic(CHANGELOG, 2)
        self.owner: InMemoryProducer = self.view.producer("owner")
        self.owner.init(60.0)
        self.heir = FormerOwners(self.view)
        self.heir.own = "heir"

    def open(self, partition: int) -> None:
        self.owner.begin()
        self.owner.produce(CHANGELOG, b"v", b"k", partition=partition)
        self.owner.flush(60.0)

    def fence(self) -> None:
        while not self.heir.fence(TAKEN, CHANGELOGS):
            self.process.sleep(LOOK_EVERY_S)

    def held(self) -> bool:
        self.process.sleep(1.0)
        view = self.view.topics()
        return view.end_offsets(CHANGELOG, committed=True) != view.end_offsets(CHANGELOG, committed=False)


@pytest.fixture
def world() -> World:
    return World()


def test_what_a_former_owner_has_open_on_the_changelog_is_ended_and_it_commits_nothing_any_more(world):
    world.open(0)
    world.heir.note("in-0", "owner")
    assert world.held()
    world.fence()
    assert not world.held()
    with pytest.raises(ProducerFenced):
        world.owner.commit()
    assert world.cluster.read(CHANGELOG) == []


def test_an_owner_without_anything_open_there_is_left_alone(world):
    """A new owner does not end open transactions on partitions that the former owner keeps.

    The former owner is alive, and has an open transaction on such a partition.
    """
    world.open(1)
    world.heir.note("in-0", "owner")
    world.fence()
    world.owner.commit()
    assert not world.held()


@pytest.mark.parametrize("noted", [{}, {"in-1": "owner"}, {"in-0": "heir"}, {"in-0": ""}])
def test_whoever_is_not_known_as_the_former_owner_is_left_alone(world, noted):
    world.open(0)
    for task, owner in noted.items():
        world.heir.note(task, owner)
    world.fence()
    world.owner.commit()
    assert not world.held()


def test_an_owner_is_known_no_longer_when_its_task_is_followed_no_longer(world):
    world.open(0)
    world.heir.note("in-0", "owner")
    world.heir.forget("in-0")
    world.fence()
    world.owner.commit()


def test_while_kafka_is_away_it_waits_until_the_task_is_opened_again(world):
    world.heir.note("in-0", "owner")
    world.network.brokers_up = False
    world.fence()
    world.network.brokers_up = True
    world.open(0)
    assert world.held()
    world.fence()
    assert not world.held()


def test_a_commit_whose_markers_are_on_their_way_is_nothing_left_open(world):
    world.open(0)
    world.heir.note("in-0", "owner")
    assert not world.heir.fence(TAKEN, CHANGELOGS)
    world.owner.commit()
    world.process.sleep(LOOK_EVERY_S)
    world.fence()
    world.open(0)
    world.owner.commit()
    assert not world.held()
