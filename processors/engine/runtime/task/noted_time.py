"""State that tasks keep in no store: a note with the committed offsets of their inputs, with stream time and counts.

    commit of flights-0:  messages, watermarks 10:00, offset 812 with the note {"task":"flights-0","time_ms":…}
    its heir:             offset 812 ──► stream time 10:00 ──► watermark 10:00

A task before ``group_by`` often has no store. Without the note, its heir would know no time until the next message, and
send no watermark; after a second ``group_by``, nothing would record its earlier watermarks. Kafka Streams keeps the
times of its partitions in the same place. The note also counts the messages that did not arrive (``arrivals``).

Invariants:
    - A note is of the same transaction as the watermarks and the offsets, and counts at these offsets only.
    - All inputs of a task have the same note. One whose offset was set by another tool has none, and none counts then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.infra.kafka.records import NotedOffset
from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.runtime.task.arrivals import NONE, Counts, together
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.time.stream_time import Remembered


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attributes:
    task: The name of the task, which has the names of its inputs.
    time_ms: Its stream time, in milliseconds; None where a store keeps it, or without one.
    ahead: Event times that wait for the world to reach them, at most ``AHEAD_KEPT``: a note stays below 1.5 kB.
    arrivals: The messages that did not arrive.
    """

    task: str
    time_ms: int | None = None
    ahead: tuple[int, ...] = ()
    arrivals: Counts = NONE


class Noted(NamedTuple):
    """The notes of a task's committed offsets: its time, if no store keeps it, and its counts."""

    time: Remembered | None
    arrivals: Counts


def note_of(task: Task, arrivals: Counts, *, timed: bool = True) -> str:
    """The note for the next commit of a task; empty when there is nothing to note.

    ``timed``: the note includes the time.
    """
    time = task.time if timed else None
    if time is None or time.is_kept or not time.stream.known:
        made = _Note(task.name, arrivals=arrivals)
        return "" if arrivals == NONE else msgspec.json.encode(made).decode()
    note = _Note(task.name, time.stream.time_ms, tuple(time.stream.ahead), arrivals)
    return msgspec.json.encode(note).decode()


def noted(task: str, committed: Sequence[int | None]) -> Noted:
    """The notes with the committed offsets of all inputs of a task.

    Counts of tasks that had some of these inputs before are included.
    """
    texts = {offset.note if isinstance(offset, NotedOffset) else "" for offset in committed}
    notes = [note for note in map(_read, sorted(texts)) if note is not None]
    arrivals = together({note.task: note.arrivals for note in notes}.values())
    own = notes[0] if len(texts) == 1 and notes and notes[0].task == task else None
    if own is None or own.time_ms is None:
        return Noted(None, arrivals)
    return Noted(Remembered(own.time_ms, own.ahead), arrivals)


def _read(text: str) -> _Note | None:
    try:
        return msgspec.json.decode(text, type=_Note)
    except JSON_FAILURES:
        return None
