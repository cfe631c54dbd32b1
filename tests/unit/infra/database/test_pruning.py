"""Old records of the registry (Holdfast's database) are deleted, unless another record still needs them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.infra.database import pruning
from holdfast.infra.database.pruning import Pruned, prune_registry
from holdfast.infra.database.records import StageNote
from holdfast.infra.database.registry import Registry

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
OLD, BEFORE = NOW - timedelta(days=500), NOW - timedelta(days=400)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(pruning, "NEWEST_KEPT", 2)
    opened = Registry(f"sqlite:///{tmp_path / 'registry.db'}")
    opened.migrate()
    yield opened
    opened.close()


def applied(registry: Registry, processor: str, at: datetime, *, ended: bool = True) -> int:
    named = {"processor": processor, "verb": "deploy", "plan_hash": "h", "plan": "{}", "who": "me", "holder": "p"}
    begun, _ = registry.journal.begin_apply(**named, now=at)
    registry.journal.note_stage(begun.id, begun.token, StageNote(0, "run", "it ran", 1.0, 1.0), at)
    if ended:
        registry.journal.end_apply(begun.id, begun.token, "done", at)
    return begun.id


def test_old_applies_go_and_the_newest_open_and_young_ones_stay(registry: Registry) -> None:
    old = [applied(registry, "fleet", OLD) for _ in range(4)]
    young = applied(registry, "fleet", NOW)
    still_open = applied(registry, "routes", OLD, ended=False)
    assert prune_registry(registry.database, BEFORE).applies == 3
    assert [each.id for each in registry.journal.applies()] == [still_open, young, old[-1]]
    assert [len(each.done) for each in registry.journal.applies()] == [1, 1, 1]
    assert prune_registry(registry.database, BEFORE) == Pruned()


def test_old_incidents_go_unless_they_are_open_or_wait_for_an_answer(registry: Registry) -> None:
    def incident(outcome: str | None, *, answered: bool = False) -> int:
        found, _ = registry.open_incident("fleet", "dead", {}, OLD)
        registry.note_incident(found.id, "noticed", "it is dead", OLD)
        if outcome is not None:
            registry.close_incident(found.id, outcome, OLD)  # type: ignore[arg-type]
        if answered:
            registry.acknowledge_incident(found.id, "me", "seen", OLD)
        return found.id

    resolved, answered = incident("resolved"), incident("failed", answered=True)
    unanswered = incident("failed")
    newest = [incident("resolved"), incident(None)]
    assert prune_registry(registry.database, BEFORE).incidents == 2
    left = {each.id: len(each.timeline) for each in registry.incidents()}
    assert left == dict.fromkeys([unanswered, *newest], 1)
    assert registry.incident(resolved) is None
    assert registry.incident(answered) is None
    questions = [incident("failed") for _ in range(5)]
    assert prune_registry(registry.database, BEFORE).incidents > 0
    kept = {each.id for each in registry.incidents() if each.outcome == "failed"}
    assert kept == set(questions[-pruning.NEWEST_KEPT :]), "unanswered ones are bounded, too"


def test_old_actions_go_and_the_newest_of_each_subject_stay(registry: Registry) -> None:
    for subject in ("fleet", "fleet", "fleet", "routes"):
        registry.record_action("rehearse", subject, "me", "{}", "equal", OLD, OLD)
    assert prune_registry(registry.database, BEFORE).actions == 1
    assert [each.subject for each in registry.actions()] == ["routes", "fleet", "fleet"]
