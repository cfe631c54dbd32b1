"""Bugs that tests plant in queries of workers' state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.queries import held_state
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.views import NoView, View, Views


def never_doubted(patch: pytest.MonkeyPatch) -> None:
    """The bug: a worker that was frozen answers before a commit has proved that its tasks are still its own."""
    patch.setattr(held_state, "_known_at", lambda held: held.freshness.seen.turned_at)


def torn_views(patch: pytest.MonkeyPatch) -> None:
    """The bug: queries see a task while its state is replaced."""

    @contextmanager
    def opens(views: Views) -> Iterator[View]:
        snapshot = views._snapshot()
        raw = snapshot.get(META_KEY)
        try:
            if raw is None:
                raise NoView("the task has committed nothing yet")
            yield View(snapshot, TaskMeta.decode(raw))
        finally:
            snapshot.close()

    patch.setattr(Views, "open", opens)
    patch.setattr(held_state, "_view_of", lambda task, held: task.store.views.open())


def present_of_standbys(patch: pytest.MonkeyPatch) -> None:
    """The bug: queries see what a standby has replayed so far, also within a commit."""

    @contextmanager
    def published(views: Views) -> Iterator[View]:
        snapshot = views._snapshot()
        raw = snapshot.get(META_KEY)
        try:
            if raw is None:
                raise NoView("the standby has replayed nothing yet")
            yield View(snapshot, TaskMeta.decode(raw))
        finally:
            snapshot.close()

    patch.setattr(Views, "published", published)


def former_positions(patch: pytest.MonkeyPatch) -> None:
    """The bug: an answer carries the position of the commit that was read first."""
    original = Views.commit

    @contextmanager
    def commit(views: Views) -> Iterator[None]:
        meta = views._meta
        with original(views):
            views._meta = meta
            yield

    patch.setattr(Views, "commit", commit)


def expired_standbys(patch: pytest.MonkeyPatch) -> None:
    """The bug: a standby answers although it is further behind than the query accepts."""
    original = held_state._stale

    def stale(held: Any, task: Any, name: str, store: str, demand: Any, demanded: Any) -> Any:
        return original(held, task, name, store, type(demand)(stale_ok_s=1e9), demanded)

    patch.setattr(held_state, "_stale", stale)


PLANTS = {
    "a frozen owner answers before it has proved that it owns the task": never_doubted,
    "queries see a task while its state is replaced": torn_views,
    "queries see what a standby has replayed so far": present_of_standbys,
    "an answer carries the position of a former commit": former_positions,
    "a standby answers that is further behind than the query accepts": expired_standbys,
}
