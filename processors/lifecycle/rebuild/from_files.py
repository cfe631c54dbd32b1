"""Reads the entries of an export file, and writes them to a temporary topic in changelog format.

The workers then read this topic and change their stores to its content.

Invariants:
    - Before the first entry is written, the file's hash is compared with the hash in the plan.
    - An entry is written to the partition from which it was exported. If its key would now belong to another partition,
      the load fails and nothing is changed. Entries about time, such as the stream time, belong to a partition and not
      to a key, so this is not checked for them.
"""

from __future__ import annotations

from holdfast.infra.kafka.topics.partitioners import PARTITIONERS
from holdfast.infra.kafka.topics.spread import spread_in
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta
from holdfast.processors.engine.state.exports import Entry, entries_in, sha256_of
from holdfast.processors.engine.state.time.time_records import is_own
from holdfast.processors.lifecycle.plans.apply import ApplyFailed, Done, ProgressLog
from holdfast.processors.lifecycle.plans.stages import LoadFile
from holdfast.processors.lifecycle.rebuild.table_rows import Loader, Progress, loader
from holdfast.processors.lifecycle.rebuild.table_world import TableWorld

#: Maximum number of entries that are sent to Kafka at once.
TOGETHER = 5_000


class FileUnfit(ApplyFailed):
    """The entries of a file cannot be put back; nothing was changed. Fields: ``path``."""


def load_file(on: TableWorld, processor: str, stage: LoadFile, topic: str, tell: ProgressLog) -> Done:
    """Write the entries of one store to ``topic``, which is new and empty.

    Raises:
        FileUnfit: The file changed after the plan was made, or its keys now belong to other partitions.
    """
    _check_same(stage)
    count = on.topics.describe([topic])[topic].partitions
    inputs = on.topology(processor).inputs_of(stage.store)
    known = [PARTITIONERS[name] for name in (spread_in(on.topics, each) for each in inputs) if name in PARTITIONERS]
    progress = Progress(tell, f"of {stage.store} written")
    named = ChangelogMeta({}, 0, "", processor=processor).encode()
    with loader(on.cluster(processor), processor) as load:
        load.send(topic, 0, ([META_KEY], [named]))
        waiting: list[Entry] = []
        for entry in entries_in(stage.path, stage.store):
            moved = not is_own(entry.key) and any(place(entry.message_key, count) != entry.partition for place in known)
            if entry.partition >= count or moved:
                raise FileUnfit(
                    f"{stage.path}: key {entry.message_key.decode(errors='replace')!r} was in partition "
                    f"{entry.partition}, but with {count} partitions its messages go to another one.",
                    action="Put it back with the number of partitions that its topic had, or feed its messages again. "
                    "Nothing was changed.",
                    path=stage.path,
                )
            waiting.append(entry)
            if len(waiting) == TOGETHER:
                _send(load, topic, waiting, progress)
        _send(load, topic, waiting, progress)
    return Done(f"{progress.rows:,} entries of {stage.store} written to {topic}", progress.rows)


def _check_same(stage: LoadFile) -> None:
    try:
        seen = sha256_of(stage.path)
    except OSError as failure:
        seen = f"unreadable: {failure.strerror}"
    if seen != stage.sha256:
        raise FileUnfit(
            f"{stage.path} changed since the plan was made: its SHA-256 is {seen}, planned was {stage.sha256}.",
            action="Plan it again. Nothing was changed.",
            path=stage.path,
        )


def _send(load: Loader, topic: str, waiting: list[Entry], progress: Progress) -> None:
    parts: dict[int, tuple[list[bytes], list[bytes]]] = {}
    for entry in waiting:
        keys, values = parts.setdefault(entry.partition, ([], []))
        keys.append(entry.key)
        values.append(entry.stored)
    for number, rows in parts.items():
        load.send(topic, number, rows)
    progress.add(len(waiting))
    waiting.clear()
