"""Decodes the assigned partitions of a member from the bytes in the description of a consumer group.

All numbers are big-endian. The layout is: version (int16); number of topics (int32). For each topic, its name (int16
length, then bytes) and its partitions (int32 count, then int32 each). At the end, the assignor's data (ignored).
"""

# tidy: allow-crumb because this module adapts the bytes of Kafka's group protocol

from __future__ import annotations

import struct

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition

_VERSION, _NUMBER, _LENGTH = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">h")


def decode_assignment(raw: bytes) -> frozenset[Partition]:
    """The assigned partitions; empty for empty bytes, which a member has before its first assignment.

    Raises:
        KafkaFailed: The bytes do not have this layout.
    """
    if not raw:
        return frozenset()
    try:
        return frozenset(_partitions(raw))
    except (struct.error, UnicodeDecodeError) as failure:
        raise KafkaFailed(
            f"The assignment of a member has {len(raw)} bytes that do not follow the consumer protocol: {failure}.",
            action="Remove other programs from this group: only this processor may join it.",
            seen=repr(raw[:40]),
        ) from failure


def _partitions(raw: bytes) -> list[Partition]:
    found = []
    (topics,) = _NUMBER.unpack_from(raw, _VERSION.size)
    at = _VERSION.size + _NUMBER.size
    for _ in range(topics):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        (name,) = struct.unpack_from(f">{length}s", raw, at)
        at += length
        (count,) = _NUMBER.unpack_from(raw, at)
        numbers = struct.unpack_from(f">{count}i", raw, at + _NUMBER.size)
        at += _NUMBER.size * (count + 1)
        found += [Partition(name.decode(), number) for number in numbers]
    return found
