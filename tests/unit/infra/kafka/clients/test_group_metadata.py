"""Holdfast reads a consumer group's generation and member id from private bytes of librdkafka.

If librdkafka changes the format of these bytes, Holdfast must refuse them.
"""

import struct

import pytest
from confluent_kafka import Consumer

from holdfast.infra.kafka.clients.consumer import _generation_of, _member_of, _metadata
from holdfast.infra.kafka.errors import KafkaFailed


def metadata(generation: int, member: str) -> bytes:
    return b"CGMDv2:" + struct.pack("=i", generation) + b"orders\0" + member.encode() + b"\0\0"


def test_the_installed_library_writes_the_bytes_that_are_read():
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "orders", "log_level": 0})
    try:
        of_the_library = consumer.consumer_group_metadata()
    finally:
        consumer.close()
    assert _generation_of(of_the_library) == -1
    assert _member_of(of_the_library) is None
    assert _metadata(of_the_library)[4:].startswith(b"orders\0")
    assert len(of_the_library) == len(metadata(-1, ""))


def test_generation_and_member_are_read():
    joined = metadata(70_000, "worker-1-5f0c")
    assert (_generation_of(joined), _member_of(joined)) == (70_000, "worker-1-5f0c")


@pytest.mark.parametrize("unknown", [b"CGMDv3:" + bytes(9), b"", "CGMDv2:", None])
def test_an_unknown_form_is_refused(unknown):
    with pytest.raises(KafkaFailed, match="does not know") as refused:
        _generation_of(unknown)
    assert "requirements.lock" in refused.value.action
