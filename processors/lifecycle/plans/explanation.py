"""Formats a plan as text for a terminal, and as Markdown for Dagster."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.processors.lifecycle.plans.facts.facts import LOCAL, Counted
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused


def explain(plan: Plan) -> str:
    """The plan as lines of text: findings, stages, deleted data, kept data, size and time, undo."""
    lines = [_headline(plan)]
    for title, entries, mark in _sections(plan):
        lines += [f"{title}:", *(f"  {mark}{entry}" for entry in entries)]
    return "\n".join(lines)


def explain_markdown(plan: Plan) -> str:
    """The plan as Markdown: findings, stages, deleted data, kept data, size and time, undo."""
    lines = [f"**{_headline(plan)}**"]
    for title, entries, mark in _sections(plan):
        lines += ["", f"**{title}**", "", *(f"{mark}{entry}" for entry in entries)]
    if plan.changes:
        lines += ["", f"Plan `{plan.hash}`"]
    return "\n".join(lines)


def size_and_time(plan: Plan) -> str:
    """Keys, bytes and duration of a plan as text; empty if all are unknown."""
    parts = []
    if plan.keys is not None:
        parts.append(count_of(plan.keys, "key"))
    if plan.size_bytes is not None:
        parts.append(in_bytes(plan.size_bytes))
    if plan.seconds is not None:
        parts.append(f"about {in_seconds(plan.seconds)}")
    if not parts:
        return ""
    return ", ".join(parts) + (f" ({plan.estimate})" if plan.estimate else "")


def count_of(number: int, what: str, plural: str = "") -> str:
    """A number with its noun: ``1 key``, ``2,000 keys``; ``plural`` is for nouns with an irregular plural."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def counted_by(counted: Counted) -> str:
    """The source of the counts of keys and bytes, as text."""
    return f"read from {LOCAL}" if counted.where == LOCAL else f"asked from {counted.where}"


def quoted(names: Iterable[str]) -> str:
    """Names as text, each in backticks, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def in_bytes(size: int) -> str:
    """A size with its unit, for example ``1 byte`` or ``1.5 KiB``."""
    if size < 1024:
        return count_of(size, "byte")
    amount = float(size)
    for unit in ("KiB", "MiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} GiB"


def in_seconds(seconds: float) -> str:
    """A duration with its unit, for example ``5 s``, ``3 min`` or ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _headline(plan: Plan) -> str:
    name = f"{plan.verb} {plan.processor}"
    match plan.verdict:
        case NothingToDo(sentence=sentence):
            return f"{name}: nothing to do. {sentence}"
        case Refused(sentence=sentence, action=action):
            return f"{name}: REFUSED. {sentence} What to do: {action}"
        case Ready(sentence=sentence):
            danger = " This deletes data permanently." if plan.permanent else ""
            danger = danger or (" This deletes data; a file keeps it for the undo." if plan.destructive else "")
            return f"{name}: {sentence}{danger}"


def _sections(plan: Plan) -> list[tuple[str, list[str], str]]:
    """Title, entries and bullet character of each non-empty section; stages have no bullet, but a number."""
    sections: list[tuple[str, list[str], str]] = [("Found", list(plan.findings), "- ")]
    if plan.changes:
        sections += [
            ("Stages", [f"{number}. {stage.says}" for number, stage in enumerate(plan.stages, 1)], ""),
            ("Deleted", list(plan.deleted), "- "),
            ("Kept", list(plan.kept), "- "),
            ("Size and time", [measure] if (measure := size_and_time(plan)) else [], "- "),
            ("Undo", [plan.undo] if plan.undo else [], "- "),
        ]
    return [section for section in sections if section[1]]
