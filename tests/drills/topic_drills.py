"""Drills with topics: a cut or widened changelog, a deleted output, a source that is widened under two workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast.assets import keys
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.deploy.deployment import deploy
from tests.drills.changelog_drills import CONFIG_MATCHES
from tests.drills.drilling import drill
from tests.drills.exercise import KEYS, STORE, WORKING, Exercise
from tests.drills.patience import wait_for
from tests.drills.source_drills import PARTITION_COUNT, QUICK_TO_SEE
from tests.parts.operated import PARTITIONS

TOPIC_EXISTS = "topic_exists"
WIDE = 5
SECOND_STREAM = """
second = application.dataframe(application.topic("{group}-wide"))
second.apply(count, stateful=True, store="wide")
"""


@drill(21, "changelog lost records under a wrong `cleanup.policy` that was repaired")
def cut(it: Exercise) -> None:
    it.begin()
    it.green(it.changelog_asset, CONFIG_MATCHES)
    it.broken()
    it.topics.alter(it.changelog, {"cleanup.policy": "compact,delete"})
    ends = it.topics.end_offsets(it.changelog, committed=True)
    gone = [TopicPartition(it.changelog, number, end) for number, end in ends.items()]
    admin = AdminClient({"bootstrap.servers": it.topics.bootstrap})
    for future in admin.delete_records(gone).values():
        future.result(30)
    it.topics.alter(it.changelog, {"cleanup.policy": "compact"})
    it.says(it.changelog_asset, CONFIG_MATCHES, "of its records are gone", "apply backfill")
    it.act("apply", "backfill", it.name, "--store", STORE, "--from", "local", "--yes")
    it.mended()
    it.green(it.processor_asset, WORKING)
    it.exact()
    # Restoring from the repaired changelog must give the whole state.
    it.home.cli("apply", "restore", it.name, "--from", "changelog")
    with it.home.verbs() as verbs:
        assert [each.differences for each in verbs.audit(it.name, ())] == [()]


@drill(22, "changelog with more partitions than its source")
def wider_log(it: Exercise) -> None:
    it.begin()
    it.green(it.source_asset, PARTITION_COUNT)
    it.broken()
    add_partition(it, it.changelog)
    it.says(it.source_asset, PARTITION_COUNT, f"has {PARTITIONS + 1} partitions", "apply backfill")
    it.act("apply", "backfill", it.name, "--store", STORE, "--from", "local", "--yes")
    it.mended()
    it.green(it.processor_asset, WORKING)
    it.exact()
    assert it.topics.describe([it.changelog])[it.changelog].partitions == PARTITIONS


@drill(23, "output topic deleted")
def output_lost(it: Exercise) -> None:
    it.begin()
    it.green(keys.topic_key(it.sink), TOPIC_EXISTS)
    it.broken()
    it.topics.delete(it.sink)
    it.says(keys.topic_key(it.sink), TOPIC_EXISTS, "Output topic", "is missing", "apply deploy")
    it.red_since(it.processor_asset, WORKING, it.broke_at, "A topic that it writes to is missing")
    it.act("apply", "deploy", it.name)
    it.mended()
    it.green(it.processor_asset, WORKING)
    it.exact(outputs=lambda expected: went_on(it, expected))


@drill(
    24, "source widened under two workers that read streams of unequal width", definition=QUICK_TO_SEE + SECOND_STREAM
)
def two_widths(it: Exercise) -> None:
    wide = f"{it.name}-wide"
    it.topics.create(TopicSpec(wide, WIDE, 1))
    it.begin()
    with it.home.verbs() as verbs:
        deploy(replace(verbs._rollout(it.name, None), slots=("0", "1")), verbs._world)
    sent = Counter({f"w{number}": 3 for number in range(WIDE)})
    producer = Producer({"bootstrap.servers": it.topics.bootstrap})
    for key in sent.elements():
        producer.produce(wide, b"1", key.encode(), partition=int(key[1:]))
    assert producer.flush(60) == 0
    it.green(it.source_asset, PARTITION_COUNT)
    it.broken()
    add_partition(it, it.source)
    it.says(it.source_asset, PARTITION_COUNT, "keys and their state are in different partitions", "--rewind earliest")
    it.red_since(it.processor_asset, WORKING, it.broke_at, "What to do: holdfast apply clear")
    clients = [ProcessorClient(it.name, slot, it.home.settings.paths) for slot in ("0", "1")]
    wait_for(lambda: all(each.status() is None for each in clients), "both workers to stop over it")
    it.act("apply", "clear", it.name, "--all", "--rewind", "earliest", "--yes")
    it.mended()
    it.green(it.processor_asset, WORKING)
    # Only one stream has this partition: the command must ask each worker only for its own tasks.
    last = f"w{WIDE - 1}"
    wait_for(lambda: it.logged("wide") == sent, "the second stream to be counted again")
    it.home.cli("apply", "clear", it.name, "--key", last, "--partition", str(WIDE - 1), "--yes")
    del sent[last]
    assert it.logged("wide") == sent
    it.exact(outputs=it.outputs_begin_again)


def add_partition(it: Exercise, topic: str) -> None:
    """Add one partition more than the topic should have."""
    admin = AdminClient({"bootstrap.servers": it.topics.bootstrap})
    for future in admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)]).values():
        future.result(30)


def went_on(it: Exercise, expected: dict[str, int]) -> None:
    """Assert that each key's outputs since the topic was recreated continue without a gap up to the last count."""
    seen = it.sent()
    assert len(seen) == KEYS
    for key, numbers in seen.items():
        assert numbers == list(range(expected[key] - len(numbers) + 1, expected[key] + 1)), f"{key}: {numbers}"
