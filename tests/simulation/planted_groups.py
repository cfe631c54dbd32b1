"""Bugs to plant in what ``group_by`` needs: the topic between its sides, its purge, and its watermarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from holdfast.processors.engine.commands.clean_slate import CleanSlate
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.committer import Committer
from holdfast.processors.engine.runtime.purge import Purge
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.runtime.watermarks import Upstream

Plants = Mapping[str, Callable[[pytest.MonkeyPatch], None]]


def _purge_ahead(patch: pytest.MonkeyPatch) -> None:
    former = Purge.step

    def ahead(self: Purge, tasks: Sequence[Task]) -> None:
        before = [task.committed for task in tasks]
        for task in tasks:
            task.committed = dict(task.positions)
        try:
            former(self, tasks)
        finally:
            for task, committed in zip(tasks, before, strict=True):
                task.committed = committed

    patch.setattr(Purge, "step", ahead)


def _sent_at_once(patch: pytest.MonkeyPatch) -> None:
    former = Committer._producer_of

    def at_once(self: Any, topic: str) -> Any:
        if topic not in self._options.groupings:
            return former(self, topic)
        plain = getattr(self, "planted", None)
        if plain is None:
            plain = self.planted = self._cluster.producer(None)
        return plain

    patch.setattr(Committer, "_producer_of", at_once)


def _rewinds_between(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CleanSlate, "_first_of", lambda self, topic: self._cluster.topics().start_offsets(topic))


def _messages_move_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamingDataFrame, "_arrives_ahead_ms", property(lambda self: self.topic.max_ahead_ms))


def _first_tells_all(patch: pytest.MonkeyPatch) -> None:
    def newest(self: Any, now: float) -> int:
        return max((time_ms for time_ms, _ in self._stream.told.values()), default=-1)

    patch.setattr(Upstream, "time_ms", newest)


def _told_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Upstream, "begin", lambda self: self._stream.told.clear())


PLANTS: Plants = {
    "a repartition topic is purged ahead of the commit": _purge_ahead,
    "messages to a repartition topic are sent outside of the transaction": _sent_at_once,
    "a rewind reads the repartition topic from its start": _rewinds_between,
    "messages behind group_by move the stream time": _messages_move_time,
    "the first task before group_by tells the time of all": _first_tells_all,
    "a restart forgets what the tasks before have told": _told_forgotten,
}
