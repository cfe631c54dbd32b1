"""Reads the last committed meta record of changelog partitions.

The meta record is the last record of each commit: it has the input offsets and the name of the processor."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta, decode_meta

#: Number of offsets at the end of a changelog that are searched first for a meta record. If there is none, the next
#: search covers eight times as many offsets.
FIRST_LOOK = 2_000
#: Maximum number of offsets that are searched for a meta record. The limit is reached in a topic that is only named
#: like a changelog, because such a topic has no meta records.
LONGEST_LOOK = 130_000
#: Maximum number of partitions that are read to find the newest generation (deployment number), the longest first.
#: One partition is enough in most cases, because every commit since a deployment records the deployment's number.
#: Reading one partition takes a fraction of a second.
GENERATION_PARTITIONS = 12


def last_meta(
    topics: Topics, changelog: str, number: int, offsets: tuple[int, int], longest: int | None = None
) -> ChangelogMeta | None:
    """The last committed meta record (input offsets of a commit) in a range of offsets; None if there is none.

    The search goes backwards from the end, because a transaction writes its meta record last. ``longest`` is the
    maximum number of offsets to search.
    """
    start, end = offsets
    if longest is not None:
        start = max(start, end - longest)
    look, begin = FIRST_LOOK, end
    while begin > start:
        upto, begin = begin, max(start, end - look)
        last = None
        for record in read_range(topics.bootstrap, changelog, number, begin, upto, extra_config=topics.client_config):
            if record.key == META_KEY and record.value is not None:
                last = record.offset, record.value
        if last is not None:
            return decode_meta(changelog, number, *last)
        look *= 8
    return None


def newest_generation(topics: Topics, changelogs: Sequence[str]) -> tuple[int, str] | None:
    """The greatest deployment number (generation) in the last meta records, with its code version.

    None if no meta record has a generation.

    Raises:
        HoldfastError: A changelog cannot be read, or a later Holdfast version wrote its meta records.
    """
    counts = {name: each.partitions for name, each in topics.describe(changelogs).items()}
    starts, ends = topics.offsets_of_all(counts, "start"), topics.offsets_of_all(counts, "stable")
    places = [(end, name, number) for name, of_topic in ends.items() for number, end in of_topic.items()]
    found = (
        last_meta(topics, name, number, (starts[name][number], end), FIRST_LOOK)
        for end, name, number in sorted(places, reverse=True)[:GENERATION_PARTITIONS]
        if number in starts[name]
    )
    newest = max((meta for meta in found if meta is not None), key=lambda meta: meta.generation, default=None)
    return None if newest is None or not newest.generation else (newest.generation, newest.code_version)


def writers_of(topics: Topics, changelog: str) -> frozenset[str]:
    """The processors that are named in the last meta records (with a commit's input offsets) of all partitions.

    Empty if there are no meta records.

    Raises:
        HoldfastError: The topic cannot be read, or a later Holdfast version wrote its meta records.
    """
    starts, ends = topics.start_offsets(changelog), topics.end_offsets(changelog, committed=True)
    found = (last_meta(topics, changelog, number, (starts[number], end), LONGEST_LOOK) for number, end in ends.items())
    return frozenset(meta.processor for meta in found if meta is not None and meta.processor)
