"""Bad input and faults outside of the engine: the error names the fault and its repair, and no message is lost."""

import json
import time

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.infra.kafka.errors import BrokerUnreachable, TopicUnusable
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine import provisioning
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.state.errors import StateFolderTaken, StateIncoherent
from holdfast.processors.engine.state.folder import StateFolder


def test_an_unreachable_broker_is_named(tmp_path):
    with pytest.raises(BrokerUnreachable, match="127.0.0.1:9") as away:
        Topics("127.0.0.1:9", timeout_s=2).ping()
    assert away.value.exit_code == 69
    assert "brokers run" in away.value.action


def test_a_changelog_with_policy_delete_is_refused_and_provision_mends_it(stream, waiting):
    changelog = changelog_topic(stream.group, "counts")
    stream.topics.create(TopicSpec(changelog, 2, 1, {**CHANGELOG_CONFIG, "cleanup.policy": "delete"}))
    with pytest.raises(TopicUnusable, match="cleanup.policy=delete, expected compact"):
        stream.application().run(count=1, timeout=60)
    topology, topics = stream.application().topology(), stream.topics
    decided = provisioning.plan(topology, provisioning.read_facts(topics, topology))
    assert any("cleanup.policy from delete to compact" in stage.sentence() for stage in decided.stages)
    provisioning.apply(decided, topics)
    # The broker confirms the changed configuration before it has received it from the controller, so the test waits.
    waiting(
        lambda: provisioning.plan(topology, provisioning.read_facts(topics, topology)).stages == (),
        "nothing to mend",
    )
    stream.feed_numbers(10)
    stream.application().run(count=10, timeout=30)
    assert sum(stream.counts().values()) == 10


def test_a_changelog_with_another_partition_count_is_refused(stream):
    stream.topics.create(TopicSpec(changelog_topic(stream.group, "counts"), 3, 1, CHANGELOG_CONFIG))
    with pytest.raises(TopicUnusable, match="has 3 partitions, its store's inputs have 2"):
        stream.application().run(count=1, timeout=60)


def test_a_missing_source_is_refused_when_creation_is_not_allowed(stream, unique):
    app = Application(stream.bootstrap, consumer_group=unique("nothing"), auto_create_topics=False, loglevel=None)
    name = unique("absent")
    app.dataframe(app.topic(name))
    with pytest.raises(TopicUnusable, match=f"source topic {name} is not there"):
        app.run(count=1, timeout=60)
    assert stream.topics.describe([name]) == {}


def test_a_state_folder_in_use_is_refused(stream):
    folder = StateFolder(stream.state_dir, stream.group, "0")
    try:
        with pytest.raises(StateFolderTaken, match="held by the live process"):
            stream.application(slot="0").run(count=1, timeout=60)
    finally:
        folder.release()


def test_a_recreated_changelog_is_refused_by_a_warm_store(stream, waiting):
    stream.feed_numbers(20)
    stream.application().run(count=20, timeout=30)
    changelog = changelog_topic(stream.group, "counts")
    stream.topics.delete(changelog)
    waiting(lambda: not stream.topics.describe([changelog]), "the topic to be gone")
    with pytest.raises(StateIncoherent, match="was recreated"):
        stream.application().run(count=1, timeout=30)


def test_a_lost_changelog_and_disk_never_start_from_nothing(stream, waiting):
    stream.feed_numbers(20)
    stream.application().run(count=20, timeout=30)
    stream.delete_local_state()
    changelog = changelog_topic(stream.group, "counts")
    stream.topics.delete(changelog)
    waiting(lambda: not stream.topics.describe([changelog]), "the topic to be gone")
    with pytest.raises(StateIncoherent, match="lost records, or the store is new"):
        stream.application().run(count=1, timeout=30)


def test_a_value_that_is_not_json_stops_and_names_its_place(stream):
    stream.partitions = 2
    stream.feed([(b"a", b"1"), (b"a", b"{broken"), (b"a", b"3")])
    with pytest.raises(ProcessingFailed, match="offset 1") as failed:
        stream.application().run(timeout=30)
    assert failed.value.fields["error"] == "ValueUnreadable"
    assert stream.counts() == {b"a": 1}
    stream.outputs_are_exact({b"a": 1})


def test_with_a_dead_letter_topic_the_bytes_and_the_reason_are_kept(stream):
    stream.feed([(b"a", b"1"), (b"a", b"{broken"), (None, b"5"), (b"a", b"3")])
    stream.application(dead_letter_topic=stream.dead_letters).run(count=4, timeout=30)
    assert stream.counts() == {b"a": 2}
    letters = {record.value: dict(record.headers or []) for record in stream.read(stream.dead_letters)}
    assert set(letters) == {b"{broken", b"5"}
    broken = letters[b"{broken"]
    assert broken["holdfast.error.type"] == b"ValueUnreadable"
    assert (broken["holdfast.topic"], broken["holdfast.offset"]) == (stream.source.encode(), b"1")
    assert b"without a key" in letters[b"5"]["holdfast.error"]


def raising(value, state):
    state.set("n", state.get("n", 0) + 1)
    state.set("touched", value)
    if value == "bad":
        raise RuntimeError("this message is bad")
    return state.get("n")


def test_a_function_that_raises_leaves_no_trace_and_the_next_start_is_at_that_message(stream):
    stream.feed([(b"a", b'"ok"'), (b"a", b'"bad"'), (b"a", b'"ok"')])
    for _ in range(2):
        with pytest.raises(ProcessingFailed, match="RuntimeError: this message is bad"):
            stream.application(raising).run(timeout=30)
    assert stream.changelog_state() == {(b"a", "n"): 1, (b"a", "touched"): "ok"}
    stream.application(raising, on_processing_error=lambda error, message, logger: True).run(count=2, timeout=30)
    assert stream.changelog_state() == {(b"a", "n"): 2, (b"a", "touched"): "ok"}
    stream.outputs_are_exact({b"a": 2})


def unstorable(value, state):
    state.set("n", state.get("n", 0) + 1)
    if value == "bad":
        state.set("object", object())
    return state.get("n")


def test_a_state_value_that_can_not_be_stored_is_the_messages_own_fault(stream):
    stream.feed([(b"a", b'"ok"'), (b"a", b'"bad"'), (b"a", b'"ok"')])
    with pytest.raises(ProcessingFailed, match=r"\[\d\] offset 1 raised ValueNotStorable"):
        stream.application(unstorable).run(timeout=30)
    stream.application(unstorable, dead_letter_topic=stream.dead_letters).run(count=2, timeout=30)
    assert stream.changelog_state() == {(b"a", "n"): 2}
    assert [record.value for record in stream.read(stream.dead_letters)] == [b'"bad"']
    stream.outputs_are_exact({b"a": 2})


@pytest.mark.thorough
def test_a_full_disk_stops_with_its_own_exit_code_and_loses_nothing(stream, worker, waiting):
    # A limit on file size makes the kernel refuse the write, with a similar error as on a full disk.
    stream.feed([(b"k%d" % number, b"1") for number in range(20_000)])
    limited = worker(limit_file_bytes=200_000).start()
    assert limited.wait() == 74, limited.tail()
    assert "Free space on the disk" in limited.tail()
    free = worker().start().wait_running()
    waiting(lambda: sum(stream.topics.committed_offsets(stream.group).values()) == 20_000, "all to be committed")
    assert free.terminate() == 0
    expected = {b"k%d" % number: 1 for number in range(20_000)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)


@pytest.mark.thorough
def test_a_broker_that_dies_is_waited_for_without_a_flood(
    own_broker, tmp_path, unique, worker_class, stream_class, waiting
):
    address = own_broker.address
    try:
        stream = stream_class(address.bootstrap, unique("away"), tmp_path / "state")
        stream.create_source()
        stream.provision()
        one = worker_class(stream, tmp_path / "home").start().wait_running()
        stream.feed_numbers(500)
        waiting(lambda: one.client.status().records["processed"] == 500, "the first half")
        import os
        import signal

        os.kill(address.pid, signal.SIGKILL)
        waiting(lambda: own_broker.running() is None, "the broker to be gone")
        waiting(lambda: (status := one.client.status()) and status.phase == "waiting", "the worker to notice")
        lines = one.log.read_text().splitlines()
        assert len(lines) < 100, "the client library's lines must not flood the log"
        assert any("client library" in line or "no broker reachable" in line for line in lines)
        assert own_broker.start().bootstrap == address.bootstrap
        stream.feed_numbers(500)
        waiting(lambda: (status := one.client.status()) and status.records["processed"] >= 1000, "the second half")
        assert one.terminate() == 0
        expected = {b"k%d" % number: 100 for number in range(10)}
        assert stream.counts() == expected
        stream.outputs_are_exact(expected)
    finally:
        if "one" in locals() and one.process.poll() is None:
            one.kill()


@pytest.mark.thorough
def test_an_open_foreign_transaction_on_the_changelog_is_waited_out(stream):
    """The restore must read up to the high watermark.

    If it stopped at the last stable offset, it would miss committed state.
    """
    stream.feed_numbers(100)
    stream.application().run(count=100, timeout=30)
    stream.delete_local_state()
    foreign = Producer(
        {"bootstrap.servers": stream.bootstrap, "transactional.id": stream.group, "transaction.timeout.ms": 5000}
    )
    foreign.init_transactions(30)
    foreign.begin_transaction()
    for partition in (0, 1):
        foreign.produce(changelog_topic(stream.group, "counts"), b"x", b"\x01\x00\x00\x00\x01kforeign", partition)
    foreign.flush(30)
    stream.feed_numbers(100)
    started = time.monotonic()
    stream.application().run(count=100, timeout=120)
    assert time.monotonic() > started
    assert json.dumps(sorted(set(stream.counts().values()))) == "[20]"
