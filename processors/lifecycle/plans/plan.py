"""A plan: what a verb would do, decided from facts, shown before it is done, and then done exactly so.

    facts ──plan (pure)──► Plan ──explain──► text, Markdown, JSON
                             └────apply────► the same stages, one after the other (``processors.lifecycle.plans.apply``)

Invariants:
    - A plan is plain data: it goes through JSON unchanged, so that an apply that was killed goes on with the very plan
      that was begun.
    - Its hash covers the request, the facts that it rests on, and the stages. A plan that was shown and one that is
      decided later have one hash only if the world still says the same.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from holdfast.processors.lifecycle.plans.requests import Request, verb_of
from holdfast.processors.lifecycle.plans.stages import Stage

HASH_CHARACTERS = 12


class NothingToDo(msgspec.Struct, frozen=True, tag="nothing_to_do"):
    """The world is as it was asked for."""

    sentence: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """It can be done."""

    sentence: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It will not be done; ``action`` is what to do instead."""

    sentence: str
    action: str
    fields: dict[str, str | int | float | bool | None] = {}


Verdict = NothingToDo | Ready | Refused

#: What becomes of an apply that was killed: it is planned anew from what it left, or goes on with the plan it had.
AfterKill = Literal["plan anew", "go on"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done.

    Args:
        request: What was asked for.
        verdict: Whether it can be done.
        stages: What is done, in order.
        findings: What was found, one sentence for each thing looked at.
        kept: What stays as it is, although one might fear for it.
        deleted: What is gone afterwards.
        undo: How to go back.
        keys: How many keys are touched; None when that is not known or means nothing.
        size_bytes: How many bytes of state are touched; None likewise.
        seconds: How long it will take, from measured rates where there are some; None when nothing is known.
        estimate: What the three numbers rest on.
        basis: The facts that the plan rests on: when one of them changes, the plan is another.
        after_kill: What becomes of an apply that was killed.
    """

    request: Request
    verdict: Verdict
    stages: tuple[Stage, ...] = ()
    findings: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    undo: str = ""
    keys: int | None = None
    size_bytes: int | None = None
    seconds: float | None = None
    estimate: str = ""
    basis: dict[str, Any] = {}
    after_kill: AfterKill = "plan anew"

    @property
    def verb(self) -> str:
        """The verb's name."""
        return verb_of(self.request)

    @property
    def processor(self) -> str:
        """Whose state it is."""
        return self.request.processor

    @property
    def hash(self) -> str:
        """What names this plan, and no other."""
        settled = (self.request, type(self.verdict).__name__, self.stages, self.basis)
        # with text for every key: numbers as keys come back from JSON as text, and would be sorted otherwise
        encoded = msgspec.json.encode(msgspec.to_builtins(settled, str_keys=True), order="deterministic")
        return hashlib.sha256(encoded).hexdigest()[:HASH_CHARACTERS]

    @property
    def changes(self) -> bool:
        """Whether there is anything to do, and it can be done."""
        return isinstance(self.verdict, Ready)

    @property
    def destructive(self) -> bool:
        """Whether a stage deletes what can't be had again."""
        return self.changes and any(stage.destructive for stage in self.stages)


def encode(plan: Plan) -> str:
    """A plan as JSON text."""
    return msgspec.json.encode(plan).decode()


def decode(text: str) -> Plan:
    """A plan from JSON text.

    Raises:
        msgspec.ValidationError: It was written by a version with other stages.
    """
    return msgspec.json.decode(text, type=Plan)


def as_document(plan: Plan) -> dict[str, Any]:
    """A plan as people and programs read it: everything of it, its verb, its hash and whether it destroys."""
    document: dict[str, Any] = msgspec.to_builtins(plan)
    return {
        "verb": plan.verb,
        "processor": plan.processor,
        "hash": plan.hash,
        "changes": plan.changes,
        "destructive": plan.destructive,
        **document,
    }


def what_changed(before: Plan, now: Plan) -> tuple[str, ...]:
    """What differs between a plan as it was shown and as it would be now, a sentence for each difference."""
    said = []
    if type(before.verdict) is not type(now.verdict):
        said.append(f"it was: {before.verdict.sentence} Now: {now.verdict.sentence}")
    for name in sorted(before.basis.keys() | now.basis.keys()):
        # one of them came back from JSON, where numbers as keys are text, and tuples are lists
        old, new = _plain(before.basis.get(name)), _plain(now.basis.get(name))
        if old != new:
            said.extend(_differences(name.replace("_", " "), old, new))
    if not said and before.stages != now.stages:
        said.append("the stages are others")
    return tuple(said)


def _differences(name: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            said
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
            for said in _differences(f"{name} {key}", old.get(key), new.get(key))
        ]
    if isinstance(old, list) and isinstance(new, list):
        gone = [f"{name}: {_short(each)} is gone" for each in old if each not in new]
        return gone + [f"{name}: {_short(each)} is new" for each in new if each not in old]
    return [f"{name} was {_short(old)}, now it is {_short(new)}"]


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(value, str_keys=True)))


def _short(value: Any) -> str:
    if isinstance(value, list):
        text = " ".join(_short(each) for each in value)
    elif isinstance(value, dict):
        text = ", ".join(f"{key} {_short(each)}" for key, each in value.items()) or "nothing"
    else:
        text = "nothing" if value is None else str(value)
    if isinstance(value, bool):
        text = "yes" if value else "no"
    return text if len(text) <= 60 else f"{text[:57]}…"
