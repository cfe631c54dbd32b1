"""The consumer group protocol's bytes, as a group's description hands them out.

A member's assignment: version (int16); topics: count (int32), then for each its name (int16 length, bytes) and its
partitions (int32 count, int32 each); then what the assignor adds, which is not read. All big-endian.
"""

from __future__ import annotations

import struct

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition

_VERSION, _NUMBER, _LENGTH = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">h")


def decode_assignment(raw: bytes) -> frozenset[Partition]:
    """The partitions in an assignment; none in an empty one, which a member has before it is given anything.

    Raises:
        KafkaFailed: These are no bytes of the protocol.
    """
    if not raw:
        return frozenset()
    try:
        return frozenset(_partitions(raw))
    except (struct.error, UnicodeDecodeError) as failure:
        raise KafkaFailed(
            f"A member of the group has an assignment of {len(raw)} bytes that can't be read: {failure}.",
            action="Use the group for this processor only: nothing else may join it.",
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
