"""The stream time of tasks that keep it in no store: a note beside the committed offsets of their inputs.

    commit of flights-0:  messages, watermarks 10:00, offset 812 with the note {"task":"flights-0","time_ms":…}
    its heir:             offset 812 ──► stream time 10:00 ──► watermark 10:00

A task before ``group_by`` often has no store. Without the note, its heir would know no time until the next message, and
tell none; behind a second ``group_by``, nobody remembers what it told before. Kafka Streams keeps the times of its
partitions in the same place.

Invariants:
    - A note is of the same transaction as the watermarks and the offsets, and counts at these offsets only.
    - All inputs of a task have the same note. One whose offset was set by another tool has none, and none counts then.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.infra.json_file import JSON_FAILURES
from holdfast.infra.kafka.records import NotedOffset
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.state.stream_time import Remembered


class _Note(msgspec.Struct, frozen=True):
    """Attributes:
    task: The name of the task, which has the names of its inputs.
    time_ms: Its stream time, in milliseconds.
    ahead: Event times that wait for the world to reach them, at most ``AHEAD_KEPT``: a note stays below 1.2 kB.
    """

    task: str
    time_ms: int
    ahead: tuple[int, ...] = ()


def note_of(task: Task) -> str:
    """The note for the next commit of a task; empty for one without time, or whose stores keep it."""
    time = task.time
    if time is None or time.is_kept or not time.stream.known:
        return ""
    return msgspec.json.encode(_Note(task.name, time.stream.time_ms, tuple(time.stream.ahead))).decode()


def noted(task: str, committed: Sequence[int | None]) -> Remembered | None:
    """The time that stands beside the committed offsets of all inputs of a task; None if there is none."""
    notes = {offset.note if isinstance(offset, NotedOffset) else "" for offset in committed}
    if len(notes) != 1:
        return None
    try:
        read = msgspec.json.decode(notes.pop(), type=_Note)
    except JSON_FAILURES:
        return None
    return Remembered(read.time_ms, read.ahead) if read.task == task else None
