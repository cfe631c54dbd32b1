"""Drills with the source topic and the group's offsets."""

from __future__ import annotations

import os
import signal

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.drills.drilling import drill
from tests.drills.exercise import KEYS, WORKING, Exercise
from tests.drills.patience import wait_for
from tests.parts.operated import DEFINITION, PARTITIONS

PARTITION_COUNT = "partition_count"
#: The consumer sees added partitions after seconds, not minutes.
QUICK_TO_SEE = DEFINITION.replace("6000}}", '6000, "topic.metadata.refresh.interval.ms": 5000}}')
LOST = 40


@drill(7, "group offsets reset to earliest")
def rewound(it: Exercise) -> None:
    it.begin()
    it.home.cli("apply", "stop", it.name)
    wait_for(lambda: it.topics.members(it.name) == 0, "the group to be empty")
    admin = AdminClient({"bootstrap.servers": it.topics.bootstrap})
    places = [TopicPartition(it.source, number, 0) for number in range(PARTITIONS)]
    it.broken()
    for future in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(it.name, places)]).values():
        future.result(30)
    it.home.cli("apply", "deploy", it.name, check=False)
    it.says(it.processor_asset, WORKING, "the offsets were reset", "apply reposition")
    it.act("apply", "reposition", it.name, "--yes")
    it.mended()
    it.exact()


@drill(8, "source topic truncated past the committed offset")
def truncated(it: Exercise) -> None:
    it.begin()
    it.feeder.pause()
    it.processed()
    pid = it.pid
    os.kill(pid, signal.SIGSTOP)
    for number in range(LOST):
        it.feeder.send(f"k{number % KEYS}", counted=False)
    it.feeder.flush()
    ends = it.topics.end_offsets(it.source, committed=True)
    it.broken()
    admin = AdminClient({"bootstrap.servers": it.topics.bootstrap})
    cuts = [TopicPartition(it.source, number, end) for number, end in ends.items()]
    for future in admin.delete_records(cuts).values():
        future.result(30)
    os.kill(pid, signal.SIGKILL)
    it.says(it.processor_asset, WORKING, "records are gone", "apply reposition")
    it.act("apply", "reposition", it.name, "--yes")
    it.feeder.resume()
    it.mended()
    it.exact()


@drill(17, "partition count of the source raised", definition=QUICK_TO_SEE)
def widened(it: Exercise) -> None:
    it.begin()
    it.green(it.source_asset, PARTITION_COUNT)
    it.broken()
    admin = AdminClient({"bootstrap.servers": it.topics.bootstrap})
    for future in admin.create_partitions([NewPartitions(it.source, PARTITIONS + 1)]).values():
        future.result(30)
    it.says(it.source_asset, PARTITION_COUNT, "keys and their state are in different partitions", "--rewind earliest")
    wait_for(lambda: not it.works(), "the workers to stop over it")
    it.act("apply", "clear", it.name, "--all", "--rewind", "earliest", "--yes")
    it.mended()
    it.green(it.processor_asset, WORKING)
    it.exact(outputs=it.outputs_begin_again)
