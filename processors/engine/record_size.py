"""How large a record may be: known before anything is sent, so that it is the fault of one message, not of a commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicFacts

#: What a record takes in a batch beyond its key, value and headers, at the most: the batch's header (61 bytes), and
#: lengths and differences as variable-length numbers (https://kafka.apache.org/documentation/#recordbatch).
OVERHEAD_BYTES = 128
#: The client library's own ``message.max.bytes``.
CLIENT_BYTES_MAX = 1_000_000
#: For records that go into no topic.
UNLIMITED = 1 << 62


class RecordTooLarge(HoldfastError):
    """An output or a state value is larger than what its topic takes."""


def record_limits(names: Iterable[str], facts: Mapping[str, TopicFacts], client_max: int | None) -> dict[str, int]:
    """By topic, how many bytes key, value and headers of one record may have together.

    Args:
        names: The topics that are written to.
        facts: What is known of them; a topic's ``max.message.bytes`` is about compressed batches, so that it is held
            against single records only where nobody has chosen a limit for the client.
        client_max: The ``message.max.bytes`` that was set for the producer; None for the library's own.
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
    """The error for a record of ``size`` bytes where ``limit`` are allowed."""
    return RecordTooLarge(
        f"{what} has {size:,} bytes with its key, and a record of topic {topic} may have {limit:,}.",
        action="Make the value smaller, or raise max.message.bytes of the topic and message.max.bytes in "
        "producer_extra_config.",
        topic=topic,
        seen=size,
        expected=limit,
    )
