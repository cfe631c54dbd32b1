"""Three brokers with replication factor 3: a leader or a coordinator is killed in the middle of a commit."""

import threading

import pytest

from holdfast.infra.kafka.clients.producer import EngineProducer
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.settings import load_settings
from holdfast.processors.engine.changelog.names import changelog_topic, transactional_id
from tests.kafka.faults.three_brokers import ThreeBrokers
from tests.kafka.faults.verification import verify
from tests.mechanics.tiers import variants


@pytest.fixture(scope="module")
def three(tmp_path_factory, java, broker_jars):
    cluster = ThreeBrokers(tmp_path_factory.mktemp("three"), java, broker_jars)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Striking(EngineProducer):
    """A producer that calls a function of the test before a chosen step of its n-th commit."""

    strike: dict

    def send_offsets(self, offsets, metadata):
        self._reached("offsets")
        super().send_offsets(offsets, metadata)

    def commit(self):
        self._reached("commit")
        super().commit()

    def _reached(self, step):
        if step == self.strike["step"]:
            self.strike["left"] -= 1
            if self.strike["left"] == 0:
                self.strike["call"]()


class StrikingCluster(KafkaCluster):
    strike: dict

    def producer(self, transactional_id, batch_bytes_max):
        made = Striking(self.bootstrap, transactional_id)
        made.strike = self.strike
        return made


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("victim", "step"),
    variants(
        [
            ("transaction coordinator", "commit"),
            ("leader of the changelog", "offsets"),
            ("leader of the changelog", "commit"),
            ("transaction coordinator", "offsets"),
        ]
    ),
)
def test_a_broker_of_three_killed_in_mid_commit_loses_and_doubles_nothing(
    three, stream_class, unique, tmp_path, waiting, victim, step
):
    stream = stream_class(three.bootstrap, unique("three"), tmp_path / "state")
    stream.topics.create(TopicSpec(stream.source, stream.partitions, 3))
    stream.feed_numbers(2000)
    app = stream.application(commit_every=100, slot="0")
    changelog = changelog_topic(stream.group, "counts")
    coordinated = transactional_id(stream.group, stream.folder_id("0"), "0")
    killed = []

    def kill():
        node = three.leader(changelog, 0) if victim.startswith("leader") else three.transaction_coordinator(coordinated)
        three.kill(node)
        killed.append(node)

    cluster = StrikingCluster(three.bootstrap, consumer_config={"session.timeout.ms": 6000})
    cluster.strike = {"step": step, "left": 5, "call": kill}
    failures = []

    def run():
        try:
            app.run_on(cluster, load_settings(home=tmp_path))
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        waiting(lambda: killed or failures, "the fault to strike")
        waiting(
            lambda: failures or sum(stream.topics.committed_offsets(stream.group).values()) == 2000,
            "all to be committed with two brokers",
        )
    finally:
        app.stop()
        thread.join(60)
    assert failures == []
    three.start()
    waiting(lambda: three.whole(stream.source, changelog, "__transaction_state"), "the third broker to be in sync")
    verify(stream, tmp_path / "state")
