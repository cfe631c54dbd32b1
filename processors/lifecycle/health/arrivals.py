"""Judges whether the messages of a processor's inputs arrive, that is, reach the store that they are meant for.

A message does not arrive if it is too late for a window, is sent to dead letters, or is skipped. A message in a wrong
partition does not arrive either, because its key finds no match in a join there. The workers count these messages
(``engine.runtime.task.arrivals``), and report the counts in their statuses.

Invariants:
    - The judgement is pure: it depends only on the statuses of the workers and the time.
    - Unknown counts are not judged: if no worker answers, the result is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.processors.engine.runtime.task.arrivals import Counts, Newest, together
from holdfast.processors.engine.serving.status import ProcessorStatus

#: The check fails for this many seconds after a message that did not reach its store.
TOLD_S = 3_600.0

_WORDS = {
    "late": "too late",
    "put_aside": "put aside",
    "skipped": "skipped by the failure policy",
    "misplaced": "in a partition where their key finds no match",
}


@dataclass(frozen=True, slots=True)
class Arrived:
    """Whether all messages of the last hour reached their store, and a sentence about the messages that did not.

    ``counts`` has the messages that did not reach their store, by reason. ``per_minute`` is their recent rate.
    ``action`` is the instruction to an operator; it is empty if ``passed`` is true.
    """

    passed: bool
    sentence: str
    action: str
    counts: Counts
    per_minute: float


def judge_arrivals(processor: str, statuses: Sequence[ProcessorStatus], now: float) -> Arrived | None:
    """Judges whether all messages of the last hour reached the stores of one processor.

    Returns None if none of the processor's workers answers. ``now`` is in seconds since 1970.
    """
    tasks = [task.arrivals for status in statuses for task in status.tasks]
    if not statuses:
        return None
    counts, per_minute = together(tasks), sum(each.per_minute for each in tasks)
    if not counts.total:
        return Arrived(True, "All messages arrived.", "", counts, 0.0)
    told = counts_in_words(counts)
    newest = counts.newest
    if newest is None or now - newest.at > TOLD_S:
        return Arrived(True, f"All messages of the last hour arrived; before it, {told}.", "", counts, per_minute)
    sentence = f"Messages do not arrive: {told}, {per_minute:g} per minute lately. The newest: {newest.reason}."
    return Arrived(False, sentence, action_of(processor, newest), counts, per_minute)


def counts_in_words(counts: Counts) -> str:
    """The counts of messages that did not reach their store, as text, for example ``3 too late, 12 put aside``."""
    found = [f"{getattr(counts, name):,} {words}" for name, words in _WORDS.items() if getattr(counts, name)]
    return ", ".join(found)


def action_of(processor: str, newest: Newest) -> str:
    """The instruction to an operator for the newest message that did not reach its store.

    It names the command that shows such messages. For most reasons, it also names the edit that prevents further ones.
    """
    kind = newest.kind
    if kind == "misplaced":
        return (
            f"`holdfast consume {newest.topic}` shows the partitions of its keys. Set the same partitioner in all its "
            "producers (`murmur2_random` is Java's), and write its records again; or bring its stream to the right "
            'partitions: `sdf.group_by("field")`.'
        )
    if kind == "put_aside":
        return f"Read the reasons with `holdfast dead-letters {processor}`; after a correction, add `--replay`."
    if kind == "late":
        return (
            f"`holdfast status {processor} --json` has the counts. Give the window more `grace_ms`, or put late "
            'messages aside with `on_late="dead-letter"`.'
        )
    return f"Read `holdfast logs {processor}`; `on_processing_error` skipped them."
