"""The maximum size of a record that a topic accepts.

The engine checks the size before it sends a record. If the record is too large, only the message fails that produced
it. Without the check, the whole commit would fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicFacts

#: Maximum bytes that a record adds to a batch besides its key, value and headers. These are the batch header (61
#: bytes), and lengths and deltas as variable-length numbers (https://kafka.apache.org/documentation/#recordbatch).
OVERHEAD_BYTES = 128
#: librdkafka's default of ``message.max.bytes``.
CLIENT_BYTES_MAX = 1_000_000
#: The limit, in bytes, that is used for a store without a changelog. It is so large that no record reaches it.
UNLIMITED = 1 << 62


class RecordTooLarge(HoldfastError):
    """An output or a state value is larger than its topic accepts."""


def record_limits(names: Iterable[str], facts: Mapping[str, TopicFacts], client_max: int | None) -> dict[str, int]:
    """Returns the maximum bytes of key, value and headers together, for a record of each topic.

    If ``client_max`` (the producer's ``message.max.bytes``) is given, it alone is the limit, because the topic's
    ``max.message.bytes`` limits the compressed batch and not the record. If it is None, the limit is the smaller one of
    librdkafka's default and the topic's ``max.message.bytes``.
    """
    limits = {}
    for name in names:
        most = client_max
        if most is None:
            seen = facts[name].config.get("max.message.bytes") if name in facts else None
            most = CLIENT_BYTES_MAX if seen is None else min(CLIENT_BYTES_MAX, int(seen))
        limits[name] = max(0, most - OVERHEAD_BYTES)
    return limits


def too_large(what: str, topic: str, size: int, limit: int) -> RecordTooLarge:
    """The error for a record of ``size`` bytes if the maximum is ``limit``."""
    return RecordTooLarge(
        f"{what} has {size:,} bytes with its key, and a record of topic {topic} may have {limit:,}.",
        action="Make the value smaller, or raise `max.message.bytes` of the topic and `message.max.bytes` in "
        "`producer_extra_config`.",
        topic=topic,
        seen=size,
        expected=limit,
    )
