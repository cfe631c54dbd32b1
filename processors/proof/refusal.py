"""Decides whether a new version may replace the running version.

Before a deployment, both versions process the last messages in memory (the proof). This module judges their results.

    last messages, their keys' state ──► Material ──a separate process──► Outcome ──judge──► proven, or NotProven

Invariants:
    - The decision depends only on the outcomes: the same outcomes give the same verdict.
    - A message that fails in both versions is no reason to refuse the new version.
    - The result lists what was not tested: steps that no message reached, output topics that only the running version
      wrote to, and stores without their state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.processors.lifecycle.plans.apply import ApplyFailed
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.proof.documents import Failure, Outcome

#: Prefixes of the result of a proof that tested nothing, or not everything. The check `proven` searches for them.
NOT_PROVEN, IN_PART = "not proven: ", "proven in part: "
#: Prefix of the traceback that a process writes when it exceeds its time limit.
TIMED_OUT = "Timeout ("
#: Maximum number of unreached steps that a result lists.
UNREACHED_SHOWN = 4
_OPT_OUT = "Functions with effects outside of stores and topics opt out by `Application(prove=False)`."
#: Maximum number of characters of an error's text that are shown.
TEXT_MAX = 600


class NotProven(ApplyFailed):
    """A new version fails on messages that the running version processes, so it is refused.

    Fields: ``topic``, ``partition``, ``offset``, ``error``, ``running`` (the code version that keeps running).
    """


def new_failures(new: Outcome, running: Outcome | None) -> tuple[Failure, ...]:
    """The messages that fail in the new version but not in the running version.

    ``running`` is None if the running version was not tested.
    """
    known = frozenset() if running is None else {each.place for each in running.failures}
    return tuple(each for each in new.failures if each.place not in known)


def is_broken_alone(new: Outcome, running: Outcome | None) -> bool:
    """Whether the new version could not process any message, and the running version could."""
    return bool(new.broken) and not (running is not None and running.broken)


def refusal(processor: str, version: str, former: str, new: Outcome, running: Outcome | None) -> NotProven | None:
    """The error that refuses the new version; None if it may replace the running version.

    ``former`` is the running version's code version.
    """
    before = f"version {former} keeps running, and nothing was changed"
    again = f"holdfast apply deploy {processor}"
    if is_broken_alone(new, running):
        return NotProven(
            f"Version {version} of {processor} was not started: on the last messages it {_cut(new.broken)} "
            f"Expected: it processes them, as version {former} does. {before[0].upper()}{before[1:]}.",
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


def words(version: str, former: str, new: Outcome, running: Outcome | None) -> str:
    """Returns the result of a proof that passed, as text.

    The text's prefix says whether everything, a part or nothing was tested.
    """
    if new.broken:  # Both versions failed to run in memory, so their results cannot be compared.
        return f"{NOT_PROVEN}both versions failed on the last messages; {version} {new.broken.rstrip('.')}"
    sent = ", ".join(f"{topic} {number:,}" for topic, number in sorted(new.sent.items())) or "none"
    made = f"version {version} processed {count_of(new.processed, 'message')}, outputs: {sent}"
    shared = len(new.failures)
    ended = f"{made}; {count_of(shared, 'message')} failed in both versions" if shared else f"{made}; none failed"
    lacks = [*new.gaps, *_unreached(new), *_silent(version, former, new, running)]
    return f"{IN_PART}{'; '.join(lacks)}; {ended}" if lacks else ended


def _unreached(new: Outcome) -> list[str]:
    if not new.unreached:
        return []
    more = len(new.unreached) - UNREACHED_SHOWN
    shown = ", ".join(new.unreached[:UNREACHED_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return [f"no message reached {shown}"]


def _silent(version: str, former: str, new: Outcome, running: Outcome | None) -> list[str]:
    """Returns a text for each output topic to which the running version sent outputs, and the new version sent none."""
    if running is None or running.broken:
        return []
    return [
        f"version {former} sent {count_of(number, 'output')} to {topic} for these messages, {version} none"
        for topic, number in sorted(running.sent.items())
        if number and not new.sent.get(topic)
    ]


def unowned(partitions: Mapping[str, Sequence[int]], manifests: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns a text that lists input partitions with messages whose state is in no checkpoint manifest.

    The result is empty if every partition's state is in a manifest. ``partitions`` maps each input topic to the
    partitions whose messages the proof uses.
    """
    tasks = [task for each in manifests for task in each["tasks"]]
    held = {(topic, task["partition"]) for task in tasks for topic in task.get("inputs", ())}
    read = {topic for topic, _ in held}
    lacking = [
        f"{topic}[{number}]"
        for topic in sorted(read & partitions.keys())
        for number in partitions[topic]
        if (topic, number) not in held
    ]
    return (f"no worker had the state of {', '.join(lacking)}",) if lacking else ()


def hung(seconds: float, traceback: str) -> str:
    """A text about a version that exceeded its time limit of ``seconds``.

    The text names the code line that the process was executing at the time limit.
    """
    frames = (line.strip() for line in traceback.splitlines() if line.strip().startswith("File "))
    where = next(frames, "")
    return f"took longer than {seconds:g} s" + (f"; it was in {where}" if where else "")


def judge_proven(results: Sequence[str] | None) -> tuple[bool, str]:
    """Returns whether the deploy of the running version tested (proved) it completely, and a sentence with the reason.

    ``results`` has the results of the deploy's proofs. An empty sequence means that the deploy had nothing to compare,
    which counts as tested. None means that Holdfast's registry has no record of the version's deploy.
    """
    if results is None:
        return False, "Not proven: no deploy of the version that runs is recorded."
    if not results:
        return True, "It replaced no other version, or its definition says `prove=False`: there was nothing to compare."
    last = results[-1]
    return not last.startswith((NOT_PROVEN, IN_PART)), f"{last[0].upper()}{last[1:]}."


def places(messages: Mapping[str, Mapping[int, Sequence[object]]]) -> int:
    """The total number of messages, over all topics and partitions."""
    return sum(len(each) for parts in messages.values() for each in parts.values())


def decode_outcome(text: bytes) -> Outcome:
    """Decodes the JSON document in which a version's process wrote the outcome."""
    return msgspec.json.decode(text, type=Outcome)


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    shown = flat if len(flat) <= TEXT_MAX else f"{flat[:TEXT_MAX]}…"
    return shown if shown.endswith((".", "…")) else f"{shown}."
