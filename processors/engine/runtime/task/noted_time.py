"""Stores a task's stream time and message counts as text (a *note*) in the metadata of its committed offsets.

    commit of flights-0:  messages, watermarks 10:00, offset 812 with the note {"task":"flights-0","time_ms":…}
    the next owner:       offset 812 ──► stream time 10:00 ──► watermark 10:00

A task before ``group_by`` often has no store that could keep its stream time. Without the note, the task's next owner
would not know the stream time, and would send no watermark until the next message. Kafka Streams keeps its partition
times in the same place. The note also contains the counts of late, dead-lettered, skipped and misplaced messages.

Invariants:
    - A note is committed in the same transaction as the watermarks and the offsets, and is valid only at these offsets.
    - All inputs of a task have the same note. If another tool sets the offset of one input, this input no longer has a
      note. The stream time in the notes of the other inputs is then ignored.
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
    """The content of a note, which is stored as JSON.

    Attributes:
        task: The name of the task that wrote the note.
        time_ms: The stream time of the task, in milliseconds; None if a store contains it, or if the task has none.
        ahead: Event times in the future, at most ``AHEAD_KEPT``, so that a note stays below 1.5 kB.
        arrivals: The counts of late, dead-lettered, skipped and misplaced messages.
    """

    task: str
    time_ms: int | None = None
    ahead: tuple[int, ...] = ()
    arrivals: Counts = NONE


class Noted(NamedTuple):
    """What the notes of a task contain: its stream time (None if a store contains it), and its message counts."""

    time: Remembered | None
    arrivals: Counts


def note_of(task: Task, arrivals: Counts, *, timed: bool = True) -> str:
    """Returns the note for the next commit of a task; empty without a stream time and counts to store.

    If ``timed`` is False, the note does not contain the stream time.
    """
    time = task.time if timed else None
    if time is None or time.is_kept or not time.stream.known:
        made = _Note(task.name, arrivals=arrivals)
        return "" if arrivals == NONE else msgspec.json.encode(made).decode()
    note = _Note(task.name, time.stream.time_ms, tuple(time.stream.ahead), arrivals)
    return msgspec.json.encode(note).decode()


def noted(task: str, committed: Sequence[int | None]) -> Noted:
    """Reads the notes from the committed offsets of all inputs of a task.

    If tasks with other names have read some of these inputs before, the result also includes the counts of those tasks.
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
