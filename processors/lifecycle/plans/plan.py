"""A plan and its hash. A plan lists the stages (steps) with which a request is carried out, and explains their effects.

    facts ──plan (pure)──► Plan ──explain──► text, Markdown, JSON
                             └────apply────► the same stages in order (``plans/apply.py``)

``Plan.hash`` is the SHA-256 of four parts: the request, the kind of verdict (``Ready``, ``Refused`` or
``NothingToDo``), the stages, and the basis (the facts that the plan depends on). The parts are JSON with sorted keys.
The first 12 hexadecimal digits are used. Findings, sizes and estimates are left out, because they change with every
record. ``plans/apply.py`` compares the hash that a user confirmed with the hash of the present plan.

Invariants:
    - A plan is plain data that JSON stores without loss, so a killed apply (execution of a plan) resumes with the same
      plan.
    - Two plans have the same hash only if the request, the facts in their basis and their stages are the same.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.plans.requests import Request, verb_of
from holdfast.processors.lifecycle.plans.stages import CheckTable, LoadChangelog, LoadTable, Stage

HASH_CHARACTERS = 12


class NothingToDo(msgspec.Struct, frozen=True, tag="nothing_to_do"):
    """Verdict of a plan: the requested state already exists."""

    sentence: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Verdict of a plan: the plan can be applied."""

    sentence: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Verdict of a plan: the plan cannot be applied; ``action`` says what the user can do instead."""

    sentence: str
    action: str
    fields: dict[str, str | int | float | bool | None] = {}


Verdict = NothingToDo | Ready | Refused

#: The way to continue a killed apply (execution of a plan). "plan anew" makes a new plan from the present state.
#: "go on" resumes the recorded plan.
AfterKill = Literal["plan anew", "go on"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The stages and effects of a request.

    Args:
        request: The request.
        verdict: Whether the plan can be applied, with one sentence.
        stages: The work, in order.
        findings: One sentence for each fact that the user should know.
        kept: Things that stay unchanged, listed because a user might expect their loss.
        deleted: Things that the apply (execution of a plan) deletes.
        undo: The way to undo the apply.
        keys: Number of affected keys; None if unknown or not applicable.
        size_bytes: Bytes of affected state; None if unknown or not applicable.
        seconds: Expected duration, from measured rates if there are any; None if unknown.
        estimate: The source of ``keys``, ``size_bytes`` and ``seconds``, as text.
        basis: The facts that the plan depends on; they are part of the hash.
        after_kill: The way to continue a killed apply.
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
        """The name of the plan's verb, for example ``deploy``."""
        return verb_of(self.request)

    @property
    def processor(self) -> str:
        """The processor's name."""
        return self.request.processor

    @property
    def hash(self) -> str:
        """The plan's identity: the first 12 hexadecimal digits of a SHA-256.

        The SHA-256 is computed from the request, the kind of verdict, the stages and the basis (facts that the plan
        depends on).
        """
        settled = (self.request, type(self.verdict).__name__, self.stages, self.basis)
        # All keys are converted to text, because a plan decoded from JSON has text keys.
        # Text keys sort differently than numbers.
        encoded = msgspec.json.encode(msgspec.to_builtins(settled, str_keys=True), order="deterministic")
        return hashlib.sha256(encoded).hexdigest()[:HASH_CHARACTERS]

    @property
    def changes(self) -> bool:
        """Whether the plan has work to do and can be applied."""
        return isinstance(self.verdict, Ready)

    @property
    def destructive(self) -> bool:
        """Whether the plan can be applied and one of its stages deletes data."""
        return self.changes and any(stage.destructive for stage in self.stages)

    @property
    def permanent(self) -> bool:
        """Whether a stage deletes data that it does not first write to a file."""
        return self.changes and any(stage.destructive and not stage.exports_first for stage in self.stages)


class PlanUnreadable(HoldfastError):
    """A recorded plan has stages (steps) that this version of Holdfast does not know. Another version wrote it."""


def encode(plan: Plan) -> str:
    """Encodes a plan as JSON text."""
    return msgspec.json.encode(plan).decode()


def decode(text: str) -> Plan:
    """Decodes a plan from JSON text.

    Raises:
        PlanUnreadable: Another version of Holdfast wrote the plan, with other stages.
    """
    try:
        return msgspec.json.decode(text, type=Plan)
    except msgspec.MsgspecError as failure:
        raise PlanUnreadable(
            f"The plan of an apply that was broken off can't be read: {failure}. Another version of Holdfast wrote it: "
            f"{text[:80]}...",
            action="End the apply by `holdfast apply abandon N --reason WHY`; `holdfast apply list` has its number. Or "
            "resume it with the version that began it. Then run this again; nothing was changed.",
        ) from failure


def versions_read(plan: Plan) -> frozenset[int]:
    """The table versions that the plan's stages read.

    Table maintenance must not delete them before the apply (execution of a plan) has ended.
    """
    return frozenset(each.version for each in plan.stages if isinstance(each, CheckTable | LoadChangelog | LoadTable))


def as_document(plan: Plan) -> dict[str, Any]:
    """A plan as a JSON document: all fields, plus verb, processor, hash, ``changes`` and ``destructive``."""
    return {
        "verb": plan.verb,
        "processor": plan.processor,
        "hash": plan.hash,
        "changes": plan.changes,
        "destructive": plan.destructive,
        **msgspec.to_builtins(plan),
    }


def what_changed(before: Plan, now: Plan) -> tuple[str, ...]:
    """The differences between an earlier shown plan and the present plan, one sentence for each."""
    found = []
    if type(before.verdict) is not type(now.verdict):
        found.append(f"the verdict was: {before.verdict.sentence} Now: {now.verdict.sentence}")
    for name in sorted(before.basis.keys() | now.basis.keys()):
        # Both values are converted, because ``before`` was decoded from JSON.
        # JSON has text keys and lists instead of number keys and tuples.
        old, new = _plain(before.basis.get(name)), _plain(now.basis.get(name))
        if old != new:
            found.extend(_differences(name.replace("_", " "), old, new))
    if not found and before.stages != now.stages:
        found.append("the stages changed")
    return tuple(found)


def _differences(name: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            change
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
            for change in _differences(f"{name} {key}", old.get(key), new.get(key))
        ]
    if isinstance(old, list) and isinstance(new, list):
        gone = [f"{name}: {_short(each)} is gone" for each in old if each not in new]
        return gone + [f"{name}: {_short(each)} is new" for each in new if each not in old]
    return [f"{name} was {_short(old)}, now {_short(new)}"]


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
