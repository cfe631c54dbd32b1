"""Plan ``clean``: archives orphans, and deletes orphans whose archived copy is older than the grace period.

An orphan is a resource without an owner. The states of an orphan, and the next step:

    never archived, or changed since ──► archive ──grace──► delete
    a deletion was interrupted       ──► finish
    in use                           ──► blocked

Invariants:
    - A resource is deleted only if it has no owner, was archived at least a grace period ago, and has not changed
      since.
    - A topic whose records name no processor is deleted only if the user gives its full name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from holdfast.processors.lifecycle.plans.explanation import count_of, in_bytes
from holdfast.processors.lifecycle.plans.facts.orphans import Kind, Orphan, OrphanFacts, Subject
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Clean
from holdfast.processors.lifecycle.plans.stages import ArchiveOrphan, DeleteOrphan

Step = Literal["archive", "archive again", "delete", "finish", "wait", "by name", "blocked", "gone"]
#: The next steps of an orphan (resource without an owner) for which a plan has a stage, in the order of their
#: execution.
_WORK: tuple[Step, ...] = ("finish", "delete", "archive", "archive again")
#: The order of deletions by kind. Groups come first, because Kafka reports a group's offsets only for existing topics.
_ORDER: tuple[Kind, ...] = ("group", "table", "topic", "checkpoint", "state")


def plan(request: Clean, facts: OrphanFacts) -> Plan:
    """The plan for all orphans, or for the selected orphans: first deletions, then copies into the archive.

    An orphan is a resource without an owner.
    """
    refused = _refused(request, facts)
    if refused is not None:
        return Plan(request=request, verdict=refused)
    chosen = [each for each in facts.subjects if not request.only or any(_fits(word, each) for word in request.only)]
    due = [(step, each) for each in chosen if (step := next_step(each, facts, request.only)) in _WORK]
    due.sort(key=lambda each: (_WORK.index(each[0]), _ORDER.index(each[1].orphan.kind), each[1].orphan.name))
    findings = (*(_finding(each, facts, request.only) for each in chosen), *facts.unseen)
    if not due:
        return Plan(request=request, verdict=NothingToDo("No orphan is due."), findings=findings)
    deleted = [each.orphan for step, each in due if step in ("delete", "finish")]
    parts = [f"archive {count_of(len(due) - len(deleted), 'orphan')}"] if len(due) > len(deleted) else []
    parts += [f"delete {count_of(len(deleted), 'orphan')}"] if deleted else []
    return Plan(
        request=request,
        verdict=Ready(f"{' and '.join(parts)}."),
        stages=tuple(_stage(step, each) for step, each in due),
        findings=findings,
        kept=("The archived copies. Archiving changes nothing of the originals.",),
        deleted=tuple(map(_deleted, deleted)),
        undo="Of an archived orphan: not needed. A deleted topic is created again by `holdfast apply put-back TOPIC`; "
        "docs/orphans.md says how to put the other kinds back, except tables.",
        size_bytes=sum(each.orphan.size_bytes or 0 for _, each in due),
        estimate="where sizes are known",
        basis={"orphan": {each.orphan.title: {"next_step": step, **(each.look.facts or {})} for step, each in due}},
        after_kill="go on",
    )


def next_step(subject: Subject, facts: OrphanFacts, only: tuple[str, ...] = ()) -> Step:
    """The next step for one orphan (resource without an owner), for example ``archive`` or ``delete``.

    ``only`` is the selection of the request.
    """
    copy = subject.archived
    if subject.look.blocked:
        return "blocked"
    if copy is not None and copy.half_deleted and not subject.unchanged:
        return "finish"
    if subject.look.facts is None:
        return "gone"
    if copy is None:
        return "archive"
    if not subject.unchanged or copy.original_deleted:
        return "archive again"
    if facts.now < copy.manifest.archived_at + facts.grace:
        return "wait"
    in_full = subject.orphan.name in only or f"{subject.orphan.kind}/{subject.orphan.name}" in only
    return "delete" if in_full or not subject.orphan.unsigned else "by name"


def state_of(subject: Subject, facts: OrphanFacts, only: tuple[str, ...] = ()) -> str:
    """The state of an orphan (resource without an owner) and its next step, in a few words."""
    since, until = "", ""
    if subject.archived is not None:
        at = subject.archived.manifest.archived_at
        since, until = f"archived {_moment(at)}", _moment(at + facts.grace)
    words: Mapping[Step, str] = {
        "archive": "not archived",
        "archive again": f"{since}, changed since",
        "wait": f"{since}, can be deleted from {until}",
        "delete": f"{since}, can be deleted now",
        "by name": f"{since}; its records name no processor, so only `--only topic/{subject.orphan.name}` deletes it",
        "finish": "its deletion was interrupted",
        "blocked": f"not touched: {subject.look.blocked}",
        "gone": "gone",
    }
    return words[next_step(subject, facts, only)]


def as_document(subject: Subject, facts: OrphanFacts) -> dict[str, Any]:
    """An orphan (resource without an owner) as a JSON object: name, size, archived copy, and next step."""
    orphan, copy = subject.orphan, subject.archived
    kept = copy.manifest.archived_at if copy is not None and subject.unchanged and not copy.original_deleted else None
    return {
        "kind": orphan.kind,
        "name": orphan.name,
        "processor": orphan.processor,
        "why": orphan.why,
        "size_bytes": orphan.size_bytes,
        "amount": subject.look.amount,
        "archived_at": None if kept is None else kept.isoformat(),
        "deletable_from": None if kept is None else (kept + facts.grace).isoformat(),
        "archive": None if copy is None else str(copy.folder),
        "state": state_of(subject, facts),
    }


def _refused(request: Clean, facts: OrphanFacts) -> Refused | None:
    if facts.inside is not None:
        return Refused(
            f"The archive is inside of {facts.inside}, which is searched for orphans: the copies would be orphans.",
            f"Set `HOLDFAST_ARCHIVE` to a folder outside of {facts.inside}.",
            {"path": str(facts.inside)},
        )
    for word in request.only:
        if not any(_fits(word, each) for each in facts.subjects):
            return Refused(
                f"{word} names no orphan.",
                "Run `holdfast orphans`, which lists them, and give a `KIND`, a `NAME` or `KIND/NAME`.",
                {"name": word},
            )
    return None


def _fits(word: str, subject: Subject) -> bool:
    orphan = subject.orphan
    return word == orphan.kind if word in _ORDER else word in (orphan.name, f"{orphan.kind}/{orphan.name}")


def _stage(step: Step, subject: Subject) -> ArchiveOrphan | DeleteOrphan:
    orphan, copy = subject.orphan, subject.archived
    if step in ("archive", "archive again"):
        what = "record its metadata; no data is copied" if orphan.kind == "table" else "copy it into the archive"
        why = "" if step == "archive" else ", which changed since its last copy: its grace period starts again"
        says = f"archive {orphan.title}{why}: {what}"
        return ArchiveOrphan(says, orphan.kind, orphan.name, subject.look.facts or {})
    assert copy is not None
    interrupted = f"finish the deletion of {orphan.title}, which was interrupted"
    says = interrupted if step == "finish" else f"delete {orphan.title}, archived {_moment(copy.manifest.archived_at)}"
    return DeleteOrphan(says, orphan.kind, orphan.name, copy.id, orphan.unsigned)


def _finding(subject: Subject, facts: OrphanFacts, only: tuple[str, ...]) -> str:
    orphan = subject.orphan
    size = "" if orphan.size_bytes is None else in_bytes(orphan.size_bytes)
    sizes = ", ".join(part for part in (subject.look.amount, size) if part)
    return f"{orphan.title}{f' ({sizes})' if sizes else ''}: {orphan.why}; {state_of(subject, facts, only)}"


def _deleted(orphan: Orphan) -> str:
    return f"{orphan.title}; {'its rows are lost' if orphan.kind == 'table' else 'its archived copy stays'}"


def _moment(at: datetime) -> str:
    """A time in UTC, to the minute, for example ``2026-11-28 09:30 UTC``."""
    return f"{at:%Y-%m-%d %H:%M} UTC"
