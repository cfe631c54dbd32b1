"""A changelog may be another topic than the one to which the state belongs. Tests how this is detected."""

from types import SimpleNamespace

import pytest

from holdfast.infra.kafka.errors import BrokerUnreachable, TopicUnusable
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.runtime.ownership.checks.same_changelogs import AGAIN_S, EVERY_S, SameChangelogs, parted
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.state.databases.task_meta import RESEEDING
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.topology import ChangelogSpec, Topology

TOPIC, SINK, DEAD = "p-counts-changelog", "p-out", "p-dead"


def task(topic_id="one", phase=TaskPhase.RUNNING):
    stores = {"counts": SimpleNamespace(topic=TOPIC, topic_id=topic_id)}
    return SimpleNamespace(name="in-0", phase=phase, meta=SimpleNamespace(stores=stores))


@pytest.mark.parametrize(
    ("tasks", "seen", "found"),
    [
        ([task()], {TOPIC: "one"}, None),
        ([task()], {TOPIC: "other"}, "other"),
        ([task()], {TOPIC: None}, "gone"),
        ([task()], {}, None),
        ([task(RESEEDING)], {TOPIC: "other"}, None),
        ([task(phase=TaskPhase.RESTORING)], {TOPIC: "other"}, None),
    ],
)
def test_a_running_tasks_changelog_has_the_id_that_its_state_says(tasks, seen, found):
    was = parted(tasks, seen)
    assert (None if was is None else (was.seen or "gone")) == found


class Kafka:
    """A simulated cluster and a clock. The test sets how the cluster describes its topics."""

    def __init__(self):
        self.now, self.looks = 0.0, 0
        self.answer = {name: SimpleNamespace(topic_id="one", partitions=1) for name in (TOPIC, SINK, DEAD)}
        self.clock = SimpleNamespace(monotonic=lambda: self.now)

    def topics(self):
        return self

    def describe(self, names):
        self.looks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def kafka():
    return Kafka()


@pytest.fixture
def same(kafka):
    changelog = ChangelogSpec("counts", TopicSpec(TOPIC))
    return SameChangelogs(Topology("p", (), (TopicSpec(SINK),), TopicSpec(DEAD), (), (changelog,), ()), kafka)


def look(same, kafka, after_s, *, failing=False):
    """Check the topics once, ``after_s`` seconds after the last check."""
    kafka.now += after_s
    before = kafka.looks
    same.check([task()], failing=failing)
    same.finish()
    assert kafka.looks == before + 1
    same.check([task()], failing=failing)


@pytest.mark.parametrize(("missing", "role"), [(SINK, "Output topic"), (DEAD, "Dead-letter topic")])
def test_a_topic_that_is_written_to_counts_as_missing_when_transactions_are_aborted(same, kafka, missing, role):
    del kafka.answer[missing]
    for _ in range(3):
        look(same, kafka, EVERY_S)
    look(same, kafka, EVERY_S, failing=True)
    with pytest.raises(TopicUnusable, match=f"{role} {missing} is missing") as gone:
        look(same, kafka, AGAIN_S, failing=True)
    assert gone.value.as_dict()["cause"] == "output-missing"


def test_one_look_proves_nothing_and_two_do(same, kafka):
    look(same, kafka, EVERY_S)
    kafka.answer = {}
    look(same, kafka, EVERY_S)
    with pytest.raises(StateIncoherent, match="is not there") as gone:
        look(same, kafka, AGAIN_S)
    assert gone.value.as_dict()["cause"] == "changelog-missing"


def test_what_was_seen_once_and_not_again_is_forgotten(same, kafka):
    there = kafka.answer
    for answer in ({}, there, {}, there, BrokerUnreachable("away", action="wait"), there):
        kafka.answer = answer
        look(same, kafka, EVERY_S)


def test_brokers_that_are_away_prove_nothing(same, kafka):
    for answer in ({}, BrokerUnreachable("away", action="wait"), {}, BrokerUnreachable("away", action="wait")):
        kafka.answer = answer
        look(same, kafka, EVERY_S)


def test_it_is_looked_no_more_often_than_it_is_time(same, kafka):
    look(same, kafka, EVERY_S)
    for _ in range(100):
        same.check([task()])
    assert kafka.looks == 1


def test_one_that_was_made_anew_is_told_with_both_ids(same, kafka):
    kafka.answer = {TOPIC: SimpleNamespace(topic_id="other", partitions=1)}
    look(same, kafka, EVERY_S)
    with pytest.raises(StateIncoherent, match="was recreated") as anew:
        look(same, kafka, AGAIN_S)
    assert (anew.value.fields["seen"], anew.value.fields["expected"]) == ("other", "one")
