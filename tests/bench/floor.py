"""The raw client as the lower bound: it copies every message unchanged, in transactions or with offset commits.

This shows the cost of Kafka and the client library alone. Its restore only reads the changelog records.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bench.contenders import Work, tell
from tests.bench.stream import PARTITIONS

RECORDS_PER_POLL = 2_000
#: A run that gets no message for this long has failed, in seconds.
SILENCE_S = 60.0


def main(work: Work) -> None:
    if work.restore:
        tell(restore_s=read_all(work), restored=work.restore)
    copy(work)
    if not work.restore:
        tell()


def consumer_of(work: Work) -> Consumer:
    # The engine's client settings, so that only the engine's own work makes a difference.
    return Consumer(
        {
            "bootstrap.servers": work.bootstrap,
            "group.id": work.group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "partition.assignment.strategy": "range",
            "fetch.wait.max.ms": 50,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": 65_536,
            "fetch.queue.backoff.ms": 10,
        }
    )


def producer_of(work: Work) -> Producer:
    settings = {
        "bootstrap.servers": work.bootstrap,
        "linger.ms": min(5, work.linger_ms),
        "batch.num.messages": 10_000,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 500_000,
        "compression.type": "lz4",
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
        "delivery.report.only.error": True,
    }
    if work.guarantee == "exactly-once":
        settings |= {"transactional.id": work.group, "transaction.timeout.ms": 15_000}
    return Producer(settings)


def copy(work: Work) -> None:
    transactions = work.guarantee == "exactly-once"
    consumer, producer = consumer_of(work), producer_of(work)
    if transactions:
        producer.init_transactions(30)
    consumer.subscribe([work.source])
    done, last_seen, produce, output = 0, time.monotonic(), producer.produce, work.output
    while done < work.count:
        if transactions:
            producer.begin_transaction()
        commit_at, before = time.monotonic() + work.commit_s, done
        while done < work.count and time.monotonic() < commit_at:
            batch = consumer.consume(1, 0.02)
            if not batch:
                if time.monotonic() - last_seen > SILENCE_S:
                    raise RuntimeError(f"got {done} of {work.count} messages, then none for {SILENCE_S:g} s")
                continue
            batch += consumer.consume(RECORDS_PER_POLL - 1, 0)
            last_seen = time.monotonic()
            for message in batch:
                if message.error() is not None:
                    raise RuntimeError(f"can't read {work.source}: {message.error()}")
                produce(output, message.value(), message.key())
            done += len(batch)
            producer.poll(0)
        if transactions:
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
            )
            producer.commit_transaction()
        elif done > before:
            producer.flush()
            consumer.commit(offsets=consumer.position(consumer.assignment()), asynchronous=False)
    consumer.close()


def read_all(work: Work) -> float:
    """Read all changelog records. Returns the seconds that this takes."""
    consumer, done = consumer_of(work), 0
    consumer.assign([TopicPartition(work.changelog, number, 0) for number in range(PARTITIONS)])
    began = last_seen = time.monotonic()
    while done < work.restore:
        for message in consumer.consume(10_000, 0.2):
            message.key(), message.value()
            done += 1
            last_seen = time.monotonic()
        if time.monotonic() - last_seen > SILENCE_S:
            raise RuntimeError(f"got {done} of {work.restore} changelog records")
    took = time.monotonic() - began
    consumer.close()
    return took


if __name__ == "__main__":
    main(Work.parse(sys.argv[1:]))
