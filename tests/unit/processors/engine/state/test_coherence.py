"""Checks of local state at startup, as a table: the state that may be used, its replay offset, and refused state."""

from dataclasses import replace

import pytest

from holdfast.processors.engine.state.coherence import (
    ChangelogFacts,
    check_inputs,
    check_restore_age,
    check_source,
    check_sources_same,
)
from holdfast.processors.engine.state.databases.task_meta import RESEEDING, StoreOffset, TaskMeta
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.keep_or_restore import plan_restore

DAY = 86_400.0


def facts(start=0, end=100, topic_id="id"):
    return {"s": ChangelogFacts("p-s-changelog", topic_id, start, end, DAY)}


def held(offset, complete_at=1000.0, topic_id="id"):
    return TaskMeta(stores={"s": StoreOffset("p-s-changelog", topic_id, offset)}, complete_at=complete_at)


def test_a_new_store_is_replayed_whole():
    assert plan_restore("t", None, facts(), 1000.0).starts == {"s": 0}


def test_a_warm_store_is_replayed_from_its_offset():
    assert plan_restore("t", held(40), facts(), 1000.0).starts == {"s": 40}


def test_a_store_older_than_the_retention_of_deletes_is_replayed_whole():
    decided = plan_restore("t", held(40), facts(), 1000.0 + 0.8 * DAY)
    assert decided.starts == {"s": 0}
    assert decided.wipe is not None
    assert "deletes" in decided.wipe


def test_an_old_store_that_lacks_nothing_is_kept():
    assert plan_restore("t", held(100), facts(), 1000.0 + 9 * DAY).wipe is None


def test_a_replay_that_came_to_the_end_too_late_is_done_again_from_the_start():
    late = replace(held(100), restoring=True)
    assert plan_restore("t", late, facts(), 1000.0 + 0.5 * DAY).wipe is None
    decided = plan_restore("t", late, facts(), 1000.0 + 9 * DAY)
    assert decided.starts == {"s": 0}
    assert decided.wipe is not None


def test_an_old_copy_is_set_aside_where_others_went_on_with_a_new_changelog():
    old = replace(held(40, topic_id="old"), inputs={"in": 7})
    decided = plan_restore("t", old, facts(), 1000.0, {"in": 8})
    assert (decided.starts, decided.aside) == ({"s": 0}, True)
    assert "went on with it" in decided.wipe
    half = replace(held(40, topic_id="old"), restoring=True)
    assert plan_restore("t", half, facts(), 1000.0, {"in": 8}).aside


@pytest.mark.parametrize("order", ["as", "sa"])
def test_the_base_of_a_reseed_is_set_aside_only_where_the_group_went_on_without_it(order):
    """Local state that cannot be continued is moved aside only if the group has committed later offsets without it.

    Both changelogs were created again. The worker died while it was writing store `a` to its new changelog.
    """
    log = "p-s-changelog"
    at = {"s": StoreOffset(log, "old", 40, {"in": 7}), "a": StoreOffset(log, RESEEDING, 0, {"in": 7})}
    base = TaskMeta(inputs={"in": 7}, stores=at, complete_at=1000.0, restoring=True)
    known = {name: facts()["s"] for name in order}
    with pytest.raises(StateIncoherent, match="recreated|is being rewritten"):
        plan_restore("t", base, known, 1000.0, {"in": 7})
    assert plan_restore("t", base, known, 1000.0, {"in": 8}).aside


@pytest.mark.parametrize(
    ("inputs", "committed", "known"),
    [
        ({"in": 8}, {"in": 8}, facts()),  # this copy may be the only complete one
        ({"in": 9}, {"in": 8}, facts()),
        ({"in": 7, "more": 5}, {"in": 8, "more": 4}, facts()),
        ({"in": 7}, {"in": None}, facts()),
        ({"in": 7}, {"in": 8}, facts(end=0)),  # no other worker has written to the new changelog
    ],
)
def test_a_copy_that_may_be_needed_is_never_set_aside(inputs, committed, known):
    with pytest.raises(StateIncoherent, match="recreated"):
        plan_restore("t", replace(held(40, topic_id="old"), inputs=inputs), known, 1000.0, committed)


@pytest.mark.parametrize(
    ("meta", "known", "says"),
    [
        (held(40, topic_id="old"), facts(), "recreated"),
        (held(101), facts(), "truncated"),
        (held(5), facts(start=10), "truncated"),
        (None, facts(start=10), "truncated"),
    ],
)
def test_a_changelog_that_is_not_the_one_we_knew_is_refused(meta, known, says):
    with pytest.raises(StateIncoherent, match=says) as refused:
        plan_restore("t", meta, known, 1000.0)
    assert refused.value.action


def test_equal_offsets_pass():
    assert check_inputs("t", {"s": {"in": 7}}, {"in": 7}) == {"in": 7}
    assert check_inputs("t", {"s": {}}, {"in": None}) == {}


@pytest.mark.parametrize(
    ("state", "committed", "says"),
    [
        ({}, 7, "lost records, or the store is new"),
        ({"in": 5}, 7, "lost records"),
        ({"in": 9}, 7, "reset, or they expired"),
        ({"in": 9}, None, "reset, or they expired"),
    ],
)
def test_state_that_does_not_fit_the_offsets_never_runs(state, committed, says):
    with pytest.raises(StateIncoherent, match=says):
        check_inputs("t", {"s": state}, {"in": committed})


def test_a_store_of_a_chain_is_not_built_again_alone():
    with pytest.raises(StateIncoherent) as alone:
        check_inputs("t", {"s": {}}, {"in": 7})
    with pytest.raises(StateIncoherent) as chained:
        check_inputs("t", {"s": {}}, {"in": 7}, chained=["s"])
    assert "backfill PROCESSOR --store s" in alone.value.action
    assert "clear PROCESSOR --all --rewind earliest" in chained.value.action
    assert "backfill" not in chained.value.action


def test_input_that_is_gone_is_never_skipped_in_silence():
    check_source("in", 0, 5, 5, 9)
    check_source("in", 0, None, 5, 9)
    with pytest.raises(StateIncoherent, match="3 records are gone"):
        check_source("in", 0, 2, 5, 9)


def test_a_source_that_was_recreated_is_never_skipped_in_silence():
    with pytest.raises(StateIncoherent, match="ends at offset 10, but 1000 is processed"):
        check_source("in", 0, 1000, 0, 10)


def test_a_store_from_the_future_has_no_known_age():
    assert plan_restore("t", held(40), facts(), 1000.0 - 30).wipe is None
    decided = plan_restore("t", held(40), facts(), 1000.0 - 3600)
    assert decided.wipe is not None
    assert "clock went back" in decided.wipe


def test_an_old_store_that_lacks_only_the_marker_of_its_own_commit_is_kept():
    assert plan_restore("t", held(99), facts(), 1000.0 + 9 * DAY).wipe is None
    assert plan_restore("t", held(98), facts(), 1000.0 + 9 * DAY).wipe is not None


def test_a_recreated_source_is_refused():
    check_sources_same("t", {"in": "id1"}, {"in": "id1", "other": "id2"})
    check_sources_same("t", {}, {"in": "id1"})
    with pytest.raises(StateIncoherent, match="was recreated"):
        check_sources_same("t", {"in": "id1"}, {"in": "id3"})


def test_a_restore_slower_than_the_retention_of_deletes_is_refused():
    check_restore_age("t", 0.9 * DAY, facts())
    with pytest.raises(StateIncoherent, match="delete.retention.ms"):
        check_restore_age("t", 1.1 * DAY, facts())


def test_what_is_missing_is_named_by_a_topic_of_which_something_was_processed():
    with pytest.raises(StateIncoherent, match="committed rows up to 2, but store s holds nothing of it"):
        check_inputs("t", {"s": {}}, {"orders": 0, "rows": 2})
