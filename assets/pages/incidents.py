"""Formats an incident as a Markdown page: the fault, the remedy, the next action and the timeline."""

from __future__ import annotations

from datetime import datetime

from holdfast.infra.database.records import Incident
from holdfast.processors.lifecycle.recovery.faults import TITLES, kind_of

#: Maximum number of timeline rows; of a longer timeline, only the first and the last rows are shown.
LINES_MAX = 60
#: Maximum number of characters of one text, because a quoted log could otherwise fill the page.
TEXT_MAX = 1_000


def page_of(incident: Incident) -> str:
    """The Markdown page of one incident, open or closed."""
    lines = [
        f"## Incident {incident.id}: {incident.processor}, {TITLES[kind_of(incident.kind)]}",
        "",
        *_facts(incident),
    ]
    if incident.action:
        lines += ["", f"**What to do:** {incident.action}"]
    lines += ["", "| when | step | seconds | what |", "|---|---|---:|---|", *_timeline(incident)]
    return "\n".join(lines)


def _facts(incident: Incident) -> list[str]:
    ended = "open" if incident.closed_at is None else f"{incident.outcome}, {_at(incident.closed_at)}"
    facts = [
        f"- kind: `{incident.kind}`; {ended}",
        f"- opened: {_at(incident.opened_at)}; attempts: {incident.attempts}",
    ]
    if incident.remedy:
        facts.append(f"- remedy: {incident.remedy}")
    if incident.acknowledged_by and incident.acknowledged_at is not None:
        note = f": {incident.acknowledgement}" if incident.acknowledgement else ""
        facts.append(f"- acknowledged: {incident.acknowledged_by}, {_at(incident.acknowledged_at)}{note}")
    if incident.reason:
        facts.append(f"- reason: {_text(incident.reason)}")
    return facts


def _timeline(incident: Incident) -> list[str]:
    opened = " ".join(f"Slot {slot}: {text}" for slot, text in incident.detail.items())
    lines = [f"| {_at(incident.opened_at)} | noticed | | {_cell(opened)} |"]
    for note in incident.timeline:
        took = "" if note.seconds is None else f"{note.seconds:.2f}"
        lines.append(f"| {_at(note.at)} | {note.step} | {took} | {_cell(note.text)} |")
    if incident.closed_at is not None:
        lines.append(f"| {_at(incident.closed_at)} | {incident.outcome} | | {_cell(incident.reason)} |")
    if len(lines) <= LINES_MAX:
        return lines
    left_out = len(lines) - LINES_MAX
    return [*lines[: LINES_MAX // 2], f"| | … | | {left_out} more lines |", *lines[-LINES_MAX // 2 :]]


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _text(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= TEXT_MAX else f"{flat[:TEXT_MAX]}…"


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")
