"""Decides whether a store's changelog is written again from local state, or whether this is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.processors.engine.runtime.ownership.reseeds import stores_to_reseed
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.task_meta import RESEEDING, StoreOffset, TaskMeta
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.keep_or_restore import plan_restore

OWN = StoreOffset("log", "id", 100, {"in": 7})
META = TaskMeta(inputs={"in": 7}, stores={"s": OWN}, transaction=3)


def facts(topic_id: str = "id", start: int = 0, end: int = 100) -> ChangelogFacts:
    return ChangelogFacts("log", topic_id, start, end, 86_400.0)


def decided(
    meta: TaskMeta | None, seen: ChangelogFacts, committed: int | None = 7, *, data: bool = True
) -> tuple[str, ...]:
    return stores_to_reseed("t", meta, {"s": seen}, {"in": committed}, lambda store: data)


@pytest.mark.parametrize("seen", [facts("other", end=0), facts("other", end=500), facts(end=99), facts(end=0)])
def test_a_changelog_that_is_another_or_was_cut_is_made_anew(seen: ChangelogFacts) -> None:
    assert decided(META, seen) == ("s",)


def test_a_changelog_that_was_turned_on_later_is_made_anew() -> None:
    before = replace(META, stores={})
    assert decided(before, facts(end=0)) == ("s",)
    assert decided(before, facts(end=0), data=False) == ("s",), "an empty store has an empty changelog"
    assert decided(before, facts(end=9)) == ("s",)
    assert decided(before, facts(end=9), data=False) == (), "who knows nothing of a store deletes nothing of it"


def test_one_that_was_broken_off_goes_on_though_other_stores_were_being_restored() -> None:
    marked = replace(META, stores={"s": StoreOffset("log", RESEEDING, 0)}, restoring=True)
    assert decided(marked, facts("other", end=40)) == ("s",)
    with pytest.raises(StateIncoherent, match="is being rewritten from local state"):
        plan_restore("t", marked, {"s": facts("other", end=40)}, 0.0)


@pytest.mark.parametrize("end", [100, 101, 900])
def test_its_own_changelog_is_left_alone(end: int) -> None:
    assert decided(META, facts(end=end)) == ()
    assert decided(None, facts("other")) == decided(TaskMeta(), facts("other")) == ()


@pytest.mark.parametrize(
    ("meta", "seen", "committed", "why"),
    [
        (META, facts("other"), 8, "holds the inputs up to"),
        (META, facts("other"), 6, "holds the inputs up to"),
        (META, facts("other"), None, "holds the inputs up to"),
        (replace(META, restoring=True), facts("other"), 7, "is incomplete"),
        (META, facts("other", start=5), 7, "begins at offset 5"),
    ],
)
def test_what_is_not_the_state_is_refused(
    meta: TaskMeta, seen: ChangelogFacts, committed: int | None, why: str
) -> None:
    with pytest.raises(StateIncoherent, match=why):
        decided(meta, seen, committed)
