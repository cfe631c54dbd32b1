"""A plan in words: for a terminal, and as Markdown for a page."""

from __future__ import annotations

from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused

_STAGES = "Stages"


def explain(plan: Plan) -> str:
    """The plan as lines of text: what is found, what changes, what is kept and deleted, how long, how to undo."""
    lines = [_headline(plan), *_section("Found", plan.findings)]
    if plan.changes:
        lines += _section(_STAGES, [f"{number}. {stage.says}" for number, stage in enumerate(plan.stages, 1)], mark="")
        lines += _section("Deleted", plan.deleted)
        lines += _section("Kept", plan.kept)
        lines += _section("Size and time", [measure] if (measure := size_and_time(plan)) else [])
        lines += _section("Undo", [plan.undo] if plan.undo else [])
    return "\n".join(lines)


def explain_markdown(plan: Plan) -> str:
    """The same as Markdown."""
    lines = [f"**{_headline(plan)}**"]
    for title, entries in _entries(plan):
        mark = "" if title == _STAGES else "- "  # stages have their numbers
        lines += ["", f"**{title}**", "", *(f"{mark}{entry}" for entry in entries)]
    if plan.changes:
        lines += ["", f"Plan `{plan.hash}`"]
    return "\n".join(lines)


def size_and_time(plan: Plan) -> str:
    """How much is touched and how long it takes, as one sentence; empty when neither is known."""
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


def count_of(number: int, what: str) -> str:
    """So many of something: ``1 key``, ``2,000 keys``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def in_bytes(size: int) -> str:
    """A size for people."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def in_seconds(seconds: float) -> str:
    """A duration for people."""
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
            danger = " This deletes what can't be had again." if plan.destructive else ""
            return f"{name}: {sentence}{danger}"


def _entries(plan: Plan) -> list[tuple[str, list[str]]]:
    entries: list[tuple[str, list[str]]] = [("Found", list(plan.findings))]
    if plan.changes:
        entries += [
            (_STAGES, [f"{number}. {stage.says}" for number, stage in enumerate(plan.stages, 1)]),
            ("Deleted", list(plan.deleted)),
            ("Kept", list(plan.kept)),
            ("Size and time", [measure] if (measure := size_and_time(plan)) else []),
            ("Undo", [plan.undo] if plan.undo else []),
        ]
    return [(title, lines) for title, lines in entries if lines]


def _section(title: str, entries: tuple[str, ...] | list[str], *, mark: str = "- ") -> list[str]:
    return [f"{title}:", *(f"  {mark}{entry}" for entry in entries)] if entries else []
