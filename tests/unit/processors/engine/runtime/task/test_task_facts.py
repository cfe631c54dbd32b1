"""The facts of a task (its recorded state in the worker). Each method changes only the fact that is in its name."""

from __future__ import annotations

import pytest

from holdfast.processors.engine.runtime.task.facts import TaskFacts, TaskPhase


def facts() -> TaskFacts:
    made = TaskFacts("in-0", "in", 0, ("in",))
    made.opened(None)
    return made


def test_what_begins_empty_stays_known_until_the_first_commit() -> None:
    task = facts()
    task.restored_by(3, 0.5, frozenset({"counts"}))
    task.begins({}, {"in": 7})
    assert (task.restored, task.restored_s, task.begun_empty) == (3, 0.5, {"counts"})
    assert (task.committed, task.began, task.positions) == ({}, {"in": 7}, {"in": 7})
    task.committed_as({"in": 9})
    assert (task.committed, task.begun_empty) == ({"in": 9}, frozenset())


def test_a_drop_goes_back_to_the_last_commit_and_without_one_to_where_it_began() -> None:
    task = facts()
    task.reads("more")
    assert task.inputs == ("in", "more")
    task.begins({"in": 5}, {"in": 5, "more": 2})
    task.passed({"in": 8, "more": 4})
    assert task.positions == {"in": 8, "more": 4}
    assert task.back_to_committed() == {"in": 5, "more": 2} == task.positions
    task.moved_to({"in": 1, "more": 1})
    assert (task.began, task.committed, task.positions) == ({"in": 1, "more": 1}, {"in": 5}, {"in": 1, "more": 1})


def test_a_phase_has_the_arrows_of_the_drawing() -> None:
    task = facts()
    assert not task.running
    task.move(TaskPhase.RUNNING)
    assert task.running
    with pytest.raises(RuntimeError, match="can't move from running to restoring"):
        task.move(TaskPhase.RESTORING)
