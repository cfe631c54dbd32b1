"""The proof of a version: what it is given, what came of it, and whether it may replace the running one.

    last messages, their keys' state ──► Material ──a process of its own──► Outcome ──judge──► proven, or NotProven

Invariants:
    - The decision is pure: the same outcomes give the same verdict.
    - A message on which the running version fails, too, says nothing about the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.processors.engine.proof import Failure, Outcome
from holdfast.processors.lifecycle.plans.apply import ApplyFailed
from holdfast.processors.lifecycle.plans.explanation import count_of

#: Begin of the result of a proof without input; the check `proven` looks for it.
NOT_PROVEN = "not proven: "
_OPT_OUT = "Functions with effects outside of stores and topics opt out by `Application(prove=False)`."
#: Characters of an error's text that are shown.
TEXT_MAX = 600


class NotProven(ApplyFailed):
    """The new version fails where the running one does not. Fields: topic, partition, offset, error, running."""


def new_failures(new: Outcome, running: Outcome | None) -> tuple[Failure, ...]:
    """The failures of the new version at messages on which the running one works; None: it was not asked."""
    known = frozenset() if running is None else {each.place for each in running.failures}
    return tuple(each for each in new.failures if each.place not in known)


def is_broken_alone(new: Outcome, running: Outcome | None) -> bool:
    """Whether the new version could not process at all, and the running one could."""
    return bool(new.broken) and not (running is not None and running.broken)


def refusal(processor: str, version: str, former: str, new: Outcome, running: Outcome | None) -> NotProven | None:
    """Why the new version may not replace the running one; None when it may."""
    before = f"version {former} keeps running, and nothing was changed"
    again = f"holdfast apply deploy {processor}"
    if is_broken_alone(new, running):
        return NotProven(
            f"Version {version} of {processor} was not started: on the last messages it ended with {_cut(new.broken)} "
            f"Expected: it processes them. {before[0].upper()}{before[1:]}.",
            action=f"Correct the definition, then: {again}. {_OPT_OUT}",
            running=former,
        )
    failures = new_failures(new, running)
    if not failures:
        return None
    first, more = failures[0], len(failures) - 1
    others = f" {count_of(more, 'further message')} failed, too." if more else ""
    return NotProven(
        f"Version {version} of {processor} was not started: the message at {first.topic}[{first.partition}] offset "
        f"{first.offset} raised {first.error}: {_cut(first.text)}{others} Expected: no message fails that version "
        f"{former} processes. {before[0].upper()}{before[1:]}.",
        action=f"Correct the function for this message, then: {again}. {_OPT_OUT}",
        topic=first.topic,
        partition=first.partition,
        offset=first.offset,
        error=first.error,
        running=former,
    )


def words(version: str, outcome: Outcome, running: Outcome | None) -> str:
    """The result of a proof that a version passed."""
    made = f"version {version} processed {count_of(outcome.processed, 'message')}, outputs: {outcome.outputs:,}"
    shared = len(outcome.failures) if running is not None else 0
    return f"{made}; {count_of(shared, 'message')} failed in both versions" if shared else f"{made}; none failed"


def judge_proven(results: Sequence[str]) -> tuple[bool, str]:
    """Whether the deployed version was proven, and a sentence; ``results`` are those of its proof, if it had one."""
    if not results:
        return True, "It replaced no other version, or its definition says `prove=False`: there was nothing to compare."
    last = results[-1]
    return not last.startswith(NOT_PROVEN), f"{last[0].upper()}{last[1:]}."


def places(messages: Mapping[str, Mapping[int, Sequence[object]]]) -> int:
    """Number of messages."""
    return sum(len(each) for parts in messages.values() for each in parts.values())


def decode_outcome(text: bytes) -> Outcome:
    """The outcome that the process wrote."""
    return msgspec.json.decode(text, type=Outcome)


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    shown = flat if len(flat) <= TEXT_MAX else f"{flat[:TEXT_MAX]}…"
    return shown if shown.endswith((".", "…")) else f"{shown}."
