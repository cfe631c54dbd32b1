"""Creates a deleted topic again from its archived copy, with partitions, configuration and records (``put-back``).

    begun ──created──► begun, with the topic's id ──all records written──► ended

If the process is killed, a repetition of the stage continues the work. It finds the topic by the recorded topic id. The
end offset of a partition tells how many records were already written to it.

Invariants:
    - Records are written only to the topic that this stage created, never to another existing topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_REFUSED
from holdfast.infra.kafka.clients.producer import BATCH_BYTES_MAX
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topic_copies import copied_records, file_of, write_records
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.system.rooted import inside
from holdfast.processors.lifecycle.orphans.archive import Archive, disk_errors, read, write
from holdfast.processors.lifecycle.orphans.kinds import sha256_of
from holdfast.processors.lifecycle.plans.apply import ApplyFailed, Done
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys, message_key_in
from holdfast.processors.lifecycle.plans.facts.orphans import VERSION, Archived
from holdfast.processors.lifecycle.plans.stages import PutTopicBack

_FILE = "put-back.json"


class TopicThere(ApplyFailed):
    """A topic with that name exists; nothing was written. Fields: ``topic``."""

    exit_code = EXIT_REFUSED


class CopyDamaged(ApplyFailed):
    """The copy of the topic is missing or differs from its manifest; nothing was written. Fields: ``path``."""


class ReturnDisturbed(HoldfastError):
    """Another producer wrote to the topic during the put-back.

    Fields: ``topic``, ``partition``, ``seen``, ``expected``.
    """


class _Return(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded progress of a put-back; ``topic_id`` is empty until the topic is created."""

    begun_at: datetime
    topic_id: str = ""
    ended_at: datetime | None = None
    version: int = VERSION


def put_back(
    archive: Archive,
    topics: Topics,
    stage: PutTopicBack,
    clock: Callable[[], datetime],
    erased: Sequence[ErasedKeys] = (),
) -> Done:
    """Create a topic again from its copy; the caller holds the archive's lock.

    Raises:
        TopicThere: A topic with that name exists.
        CopyDamaged: The copy is damaged, or is not the copy that the plan names.
        ErasedKeyThere: The copy has a key that was erased after the copy was made. ``erased`` has the erased keys of
            the processors that may own the topic.
        PathOutside: The manifest names a file outside of the copy's folder.
        ReturnDisturbed: Another producer wrote to the topic during the put-back.
        HoldfastError: Kafka refused a request.
    """
    name = stage.topic
    copy = archive.newest()[0].get(("topic", name))
    if copy is None or copy.id != stage.archive:
        raise CopyDamaged(
            f"The copy {stage.archive} of {name} is not the newest one in {archive.root}; nothing was put back.",
            action=f"Run `holdfast plan put-back {name}`.",
            path=str(archive.root),
        )
    about = copy.manifest.about
    _check_files(copy)
    _check_erased(copy, erased)
    total = sum(about["records"].values())
    done = Done(f"{name} is back: {total:,} records in {about['partitions']} partition(s)", total)
    state = _made(copy, topics, name, clock)
    if state.ended_at is not None:
        return done
    ends = topics.end_offsets(name, committed=False)
    counts = {int(number): count for number, count in about["records"].items()}
    records = {
        number: islice(copied_records(copy.folder / file_of(number)), ends.get(number, 0), None) for number in counts
    }
    write_records(topics, name, records, int(about["config"].get("max.message.bytes", BATCH_BYTES_MAX)))
    _check_ends(name, counts, topics.end_offsets(name, committed=False))
    _note(copy, msgspec.structs.replace(state, ended_at=clock()))
    return done


def _made(copy: Archived, topics: Topics, name: str, clock: Callable[[], datetime]) -> _Return:
    """Create the topic, or continue with the topic that an interrupted apply created; returns the recorded progress.

    An apply is the execution of a plan.
    """
    file, about = copy.folder / _FILE, copy.manifest.about
    state = read(file, _Return) if file.exists() else None
    there = topics.describe([name]).get(name)
    if there is None:
        state = _note(copy, _Return(begun_at=clock()))
        ours = topics.create(TopicSpec(name, about["partitions"], about["replication"], about["config"]))
    elif state is not None and state.topic_id:
        ours = state.topic_id == there.topic_id
    # An earlier run may have created the topic, and then have been killed before it recorded the topic id. So if a
    # put-back has begun, an empty topic with this name counts as created by that run.
    else:
        ours = state is not None and not any(topics.end_offsets(name, committed=False).values())
    if state is None or not ours:
        raise TopicThere(
            f"Topic {name} exists; nothing was put back.",
            action=f"If its records are not needed, delete it, then run `holdfast apply put-back {name}`.",
            topic=name,
        )
    if state.topic_id:
        return state
    return _note(copy, msgspec.structs.replace(state, topic_id=topics.describe([name])[name].topic_id))


def _note(copy: Archived, state: _Return) -> _Return:
    with disk_errors(copy.folder):
        write(copy.folder / _FILE, state)
    return state


def _check_files(copy: Archived) -> None:
    for file, expected in copy.manifest.about["sha256"].items():
        path = inside(copy.folder, file)
        seen = sha256_of(path) if path.is_file() else None
        if seen != expected:
            raise CopyDamaged(
                f"{path} {'is missing' if seen is None else 'differs from its manifest'}; nothing was put back.",
                action="Restore the folder of the copy from a backup, or use an older copy of the topic beside it.",
                path=str(path),
            )


def _check_erased(copy: Archived, erased: Sequence[ErasedKeys]) -> None:
    known = [each for each in erased if each.times]
    if not known:
        return
    for number in copy.manifest.about["records"]:
        for record in copied_records(copy.folder / file_of(int(number))):
            for each in known:
                then = f"Erase the key again, which removes it from the archive: `holdfast erase {each.processor} KEY`."
                for key in {record.key or b"", message_key_in(record.key)}:
                    each.check(key, copy.manifest.archived_at, f"The copy {copy.folder}", then)


def _check_ends(name: str, counts: dict[int, int], ends: dict[int, int]) -> None:
    for number, expected in sorted(counts.items()):
        if ends.get(number) != expected:
            raise ReturnDisturbed(
                f"{name}[{number}] ends at {ends.get(number)}, expected {expected}: another producer wrote to it.",
                action=f"Stop that producer, delete the topic, then run `holdfast apply put-back {name}`.",
                topic=name,
                partition=number,
                seen=ends.get(number),
                expected=expected,
            )
