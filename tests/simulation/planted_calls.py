"""Bugs that tests plant in durable calls (``apply_async(durable=True)``)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.processors.engine.runtime.task import awaited
from holdfast.processors.engine.state.kept_answers import WAITS, KeptAnswers


def used_uncommitted(patch: pytest.MonkeyPatch) -> None:
    """The bug: a message is processed with its answer before the answer is committed."""
    patch.setattr(awaited, "takewhile", lambda waits, jobs: jobs)


def forgotten_by_owners(patch: pytest.MonkeyPatch) -> None:
    """The bug: a new owner of a task does not look for stored answers."""
    patch.setattr(KeptAnswers, "_read_keys", lambda self: setattr(self, "_keys", {}))


def forgotten_by_aborts(patch: pytest.MonkeyPatch) -> None:
    """The bug: an aborted commit drops the answers that were received, so their calls are made again."""
    restore = KeptAnswers.restore

    def drops(self: KeptAnswers) -> None:
        self._uncommitted = {}
        restore(self)

    patch.setattr(KeptAnswers, "restore", drops)


def committed_by_aborts(patch: pytest.MonkeyPatch) -> None:
    """The bug: after an aborted commit, its answers are used as if they were committed."""
    find = KeptAnswers.find

    def finds(self: KeptAnswers, asked: Any) -> Any:
        aborted = self._aborted.get(asked.offset)
        found = find(self, asked)
        return (aborted["answer"],) if found is WAITS and aborted is not None else found

    patch.setattr(KeptAnswers, "find", finds)


def never_deleted(patch: pytest.MonkeyPatch) -> None:
    """The bug: an answer stays in the store after its message is committed."""
    patch.setattr(KeptAnswers, "settle", lambda self, position: None)


PLANTS = {
    "an answer is used before it is committed": used_uncommitted,
    "a new owner does not look for stored answers": forgotten_by_owners,
    "an aborted commit drops received answers": forgotten_by_aborts,
    "answers of an aborted commit count as committed": committed_by_aborts,
    "an answer stays after the commit of its message": never_deleted,
}
