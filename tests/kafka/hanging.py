"""Creates a hanging transaction on a real broker.

Its record is in a partition, but no coordinator knows the transaction.

Since version 3.6, brokers check each transactional write with the coordinator. With this check off, as in older
brokers, a write that arrives after the end of its transaction opens a new one. No coordinator ever ends that one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaAdminClient
from kafka.protocol.producer.produce import ProduceRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

CHECK = "transaction.partition.verification.enable"


@contextmanager
def unverified(bootstrap: str) -> Iterator[None]:
    """Switch off the broker's check of transactional writes for this block, so that it accepts late writes."""
    _set(bootstrap, "false")
    try:
        yield
    finally:
        _set(bootstrap, "true")


def leave_hanging(
    bootstrap: str, topic: str, partition: int, *, producer_id: int, age_s: float, epoch: int = 0, sequence: int = 0
) -> None:
    """Write one record in a transaction that no coordinator knows. Its timestamp is ``age_s`` seconds ago.

    If the producer has written to the partition before, ``epoch`` and ``sequence`` must continue those of the producer.
    """
    moment = int((time.time() - age_s) * 1000)
    batch = DefaultRecordBatchBuilder(2, 0, True, producer_id, epoch, sequence, 1 << 16)
    batch.append(0, moment, b"late", b"write", [])
    place = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id="lost",
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            place(
                name=topic,
                partition_data=[place.PartitionProduceData(index=partition, records=bytes(batch.build()))],
            )
        ],
        max_version=11,
    )
    client = KafkaAdminClient(bootstrap_servers=bootstrap)

    async def send():
        return await client._manager.send(request, node_id=1)

    deadline = time.monotonic() + 60
    try:
        while True:  # the broker applies its changed configuration a moment later
            (told,) = client._manager.run(send).responses[0].partition_responses
            if told.error_code == 0:
                return
            assert time.monotonic() < deadline, f"the late write was refused: {told}"
            time.sleep(0.1)
    finally:
        client.close()


def _set(bootstrap: str, value: str) -> None:
    entry = ConfigEntry(CHECK, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
