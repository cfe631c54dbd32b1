"""A transaction that hangs for real: written to a partition, and unknown to every coordinator.

Brokers check each transactional write with the coordinator since 3.6; with that check off, as in older ones, a write
that comes late, after its transaction was ended, opens one that nobody will ever end.
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
    """A broker that takes late transactional writes."""
    _set(bootstrap, "false")
    try:
        yield
    finally:
        _set(bootstrap, "true")


def leave_hanging(
    bootstrap: str, topic: str, partition: int, *, producer_id: int, age_s: float, epoch: int = 0, sequence: int = 0
) -> None:
    """Write one record in a transaction that no coordinator knows, dated ``age_s`` ago.

    ``epoch`` and ``sequence`` are the next ones of a producer that has written to the partition before.
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
        while True:  # the broker follows the change of its configuration a moment later
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
