"""Reads the input offsets that a changelog's state holds, from its last committed meta record.

Invariants:
    - Read only, and only the end of each partition: a transaction writes its meta record last.
"""

from __future__ import annotations

from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.topics import Topics
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta

#: Number of offsets read first; eight times as many in each further step without a meta record.
FIRST_LOOK = 2_000


def held_inputs(topics: Topics, changelog: str) -> dict[int, dict[str, int]]:
    """Partition -> input topic -> next offset, for partitions with a meta record.

    Raises:
        holdfast.infra.kafka.errors.KafkaFailed: It can't be read.
    """
    starts, ends = topics.start_offsets(changelog), topics.settled_end_offsets(changelog)
    found = {number: _last(topics, changelog, number, starts[number], end) for number, end in ends.items()}
    return {number: dict(meta.inputs) for number, meta in found.items() if meta is not None}


def _last(topics: Topics, changelog: str, number: int, start: int, end: int) -> ChangelogMeta | None:
    look, begin = FIRST_LOOK, end
    while begin > start:
        upto, begin = begin, max(start, end - look)
        last = None
        config = topics.client_config
        for record in read_range(topics.bootstrap, changelog, number, begin, upto, extra_config=config):
            if record.key == META_KEY and record.value is not None:
                last = record.value
        if last is not None:
            return ChangelogMeta.decode(last)
        look *= 8
    return None
