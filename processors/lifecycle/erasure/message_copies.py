"""Removes a key's messages from the dead-letter topic, from archived topics, and from export files.

Kafka deletes single records only at the beginning of a partition. So the other letters are written again to the end,
and then all letters before them are deleted. A file is written again without the key's lines, and replaced at once.

Invariants:
    - A letter of another key is written again, with all its headers, before it is deleted.
    - A file is replaced only by a complete file, and its copy on the disk is synced first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics.topic_copies import copied_records, file_of, write_copy
from holdfast.processors.engine.state.exports import ExportUnreadable, entry_of
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.finding import Found, not_yet
from holdfast.processors.lifecycle.orphans.archive import MANIFEST, Archive, disk_errors, sync, write
from holdfast.processors.lifecycle.orphans.kinds import sha256_of
from holdfast.processors.lifecycle.plans.facts.dead_letters import replay_group
from holdfast.processors.lifecycle.world.dead_letters import AT_ONCE, STEP_S

#: Function of a partition, a first and an end offset that yields the committed records.
Read = Callable[[Partition, int, int], Iterator[Record]]


class LetterTopics(Protocol):
    """The requests about a dead-letter topic."""

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> first offset that still exists."""

    def settled_end_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> end offset, after open transactions have ended."""

    def committed_offsets(self, group: str) -> Mapping[Partition, int]:
        """The offsets that a group has committed."""

    def delete_before(self, offsets: Mapping[Partition, int]) -> None:
        """Delete the records before these offsets."""


def erase_letters(
    topics: LetterTopics,
    cluster: KafkaCluster,
    processor: str,
    topic: str,
    entries: KeyEntries,
    read: Read,
    check: Callable[[], None],
) -> Found:
    """Delete the key's dead letters. Letters of other keys are written again to the end of their topic first.

    The group that records which letters were sent again also records how far this got, in the same transactions. So a
    repeated call writes no letter twice. ``check`` raises if this run no longer holds the apply (execution of a plan).

    Raises:
        NotYetGone: A letter of the key is left.
        KafkaFailed: Kafka refused a request.
    """
    starts, ends = topics.start_offsets(topic), topics.settled_end_offsets(topic)
    places = {
        number: end
        for number, end in ends.items()
        if any(each.key == entries.key for each in read(Partition(topic, number), starts[number], end))
    }
    if not places:
        return Found("absent", f"all letters of {len(ends)} partitions were read: none is of the key")
    group = replay_group(processor)
    metadata, producer = cluster.outside_metadata(group), cluster.producer(f"holdfast-{processor}-replay")
    gone = kept = 0
    try:
        producer.init(STEP_S)
        done = topics.committed_offsets(group)
        for number, end in sorted(places.items()):
            place = Partition(topic, number)
            records = read(place, min(end, max(starts[number], done.get(place, 0))), end)
            while chunk := list(islice(records, AT_ONCE)):
                check()
                producer.begin()
                for record in chunk:
                    if record.key == entries.key:
                        gone += 1
                        continue
                    kept += 1
                    stamp, headers = record.timestamp_ms, record.headers
                    producer.produce(
                        topic, record.value, record.key, partition=number, timestamp_ms=stamp, headers=headers
                    )
                producer.flush(STEP_S)
                producer.send_offsets({place: chunk[-1].offset + 1}, metadata)
                producer.commit()
    finally:
        producer.close()
    topics.delete_before({Partition(topic, number): end for number, end in places.items()})
    starts, ends = topics.start_offsets(topic), topics.settled_end_offsets(topic)
    # Letters that came after the copy began are of later messages.
    for number, end in places.items():
        if starts[number] < end or any(
            each.key == entries.key and each.offset < end
            for each in read(Partition(topic, number), starts[number], ends[number])
        ):
            raise not_yet(topic, f"{topic}[{number}] still has letters of the key before offset {end}")
    return Found(
        "gone",
        f"{gone} letters of the key are deleted and {kept} others written again; no record before the deletes can be "
        "read; Kafka removes their segments with `file.delete.delay.ms` after the next one begins",
    )


def erase_in_exports(folder: Path, entries: KeyEntries) -> Found:
    """Remove the key's lines from the export files in a folder.

    Raises:
        NotYetGone: A file is being written, or can't be read.
        ArchiveFailed: A file can't be written.
    """
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if unfinished := sorted(folder.glob("*.part")) if folder.is_dir() else []:
        raise not_yet(
            str(folder),
            f"{unfinished[0]} is being written, or was left by a killed command",
            "Wait for its command, or delete the file.",
        )
    removed = changed = 0
    for file in files:
        lines = file.read_bytes().splitlines(keepends=True)
        kept = [line for number, line in enumerate(lines, 1) if not _is_of(line, number, entries, file)]
        if len(kept) == len(lines):
            continue
        removed, changed = removed + len(lines) - len(kept), changed + 1
        _replace(file, b"".join(kept))
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
            if _is_of(line, number, entries, file):
                raise not_yet(str(file), f"{file} still has line {number} of the key")
    if not removed:
        return Found("absent", f"all {len(files)} export files were read: no line is of the key")
    return Found("gone", f"{removed} lines are removed from {changed} export files; all {len(files)} were read again")


def _is_of(line: bytes, number: int, entries: KeyEntries, file: Path) -> bool:
    if not line.strip():
        return False
    try:
        found = entry_of(line, number)
    except ExportUnreadable as failure:
        raise not_yet(str(file), f"{file}: {failure.message}", "Delete the file, or correct the line.") from failure
    return found.message_key == entries.key or entries.has(found.key)


def _replace(file: Path, content: bytes) -> None:
    part = file.with_name(f".{file.name}.new")
    with disk_errors(file):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(file)
        sync(file.parent)


def erase_in_archive(archive: Archive, processor: str, topics: frozenset[str], entries: KeyEntries) -> Found:
    """Remove the key's records from archived topics of a processor; the caller holds the archive's lock.

    Archived databases, checkpoints and tables of the processor can't be changed without the key's neighbours. They are
    named, and the outcome is then ``unknown``.

    Raises:
        CopyUnreadable: A file of an archived topic can't be read.
        ArchiveFailed: A file can't be written.
    """
    copies, unread = archive.copies()
    own = [each for each in copies if each.manifest.processor == processor or each.manifest.name in topics]
    others = [each for each in own if each.manifest.kind not in ("topic", "group")]
    removed = read = 0
    for copy in own:
        if copy.manifest.kind == "topic":
            read += 1
            removed += _erase_in_copy(copy.folder, copy.manifest, entries)
    for copy in own:
        if copy.manifest.kind == "topic" and any(_of_copy(copy.folder, copy.manifest, entries)):
            raise not_yet(str(copy.folder), f"The archived copy {copy.folder} still has records of the key")
    if others or unread:
        named = ", ".join(str(each.folder) for each in others) or unread[0]
        return Found("unknown", f"copies that can't be searched are in the archive: {named}; delete them by hand")
    if not removed:
        return Found("absent", f"{read} archived topics of {processor} were read: no record is of the key")
    return Found("gone", f"{removed} records are removed from archived topics; all {read} were read again")


def _of_copy(folder: Path, manifest: Any, entries: KeyEntries) -> Iterator[Record]:
    for number in manifest.about["records"]:
        for record in copied_records(folder / file_of(int(number))):
            if record.key == entries.key or entries.has(record.key):
                yield record


def _erase_in_copy(folder: Path, manifest: Any, entries: KeyEntries) -> int:
    """Write the files of an archived topic again without the key's records; returns how many were removed.

    The manifest is written last. After a kill before it, a hash differs; the next call corrects the manifest.
    """
    about = manifest.about
    records, hashes, removed = dict(about["records"]), dict(about["sha256"]), 0
    for number in about["records"]:
        file = folder / file_of(int(number))
        count = sum(record.key == entries.key or entries.has(record.key) for record in copied_records(file))
        if count:
            kept = (each for each in copied_records(file) if not (each.key == entries.key or entries.has(each.key)))
            part = file.with_name(f".{file.name}.new")
            with disk_errors(file):
                write_copy(kept, part)
                part.replace(file)
                sync(folder)
        removed += count
        records[number] = sum(1 for _ in copied_records(file))
        hashes[file.name] = sha256_of(file)
    if records != about["records"] or hashes != about["sha256"]:
        sizes = {name: (folder / name).lstat().st_size for name in manifest.files}
        with disk_errors(folder):
            about = {**about, "records": records, "sha256": hashes}
            write(folder / MANIFEST, msgspec.structs.replace(manifest, about=about, files=sizes))
    return removed
