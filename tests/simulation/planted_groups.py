"""Bugs that tests plant in ``group_by``: in its repartition topic, purge, watermarks, and the joins behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from holdfast.infra.kafka.clients.read_ends import ReadEnds
from holdfast.processors.engine.commands.clean_slate import CleanSlate
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.joins import as_of, table_rows
from holdfast.processors.engine.joins import interval as joins
from holdfast.processors.engine.joins import rows_of_both as table_joins
from holdfast.processors.engine.joins.versioned_tables import VersionedRead
from holdfast.processors.engine.runtime.committer import Committer
from holdfast.processors.engine.runtime.ownership.fencing import FormerOwners
from holdfast.processors.engine.runtime.purge import Purge
from holdfast.processors.engine.runtime.reading.grouped_stream_time import Upstream
from holdfast.processors.engine.runtime.reading.reading_order import ReadingOrder
from holdfast.processors.engine.runtime.reading.upstream_times import NEVER, WatermarksAhead
from holdfast.processors.engine.runtime.reading.watermarks import Before, _Word
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.time.dated_values import DatedValues
from holdfast.processors.engine.state.time.stream_time import NO_TIME, StreamTime

Plants = Mapping[str, Callable[[pytest.MonkeyPatch], None]]


def _purge_ahead(patch: pytest.MonkeyPatch) -> None:
    former = Purge.step

    def ahead(self: Purge, tasks: Sequence[Task]) -> None:
        before = [task.committed for task in tasks]
        for task in tasks:
            task._committed = dict(task.positions)
        try:
            former(self, tasks)
        finally:
            for task, committed in zip(tasks, before, strict=True):
                task._committed = committed

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
    patch.setattr(StreamTime, "let_go_to", lambda self, limit_ms: None)


def _first_tells_all(patch: pytest.MonkeyPatch) -> None:
    def newest(self: Before) -> int:
        return max((word.reached_ms for word in self._words.values()), default=-1)

    patch.setattr(Before, "reached_ms", newest)


def _told_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The bug: after a restart, one watermark is treated as the watermarks of all upstream tasks."""
    former = Before.begin

    def begin(self: Before, told_before: Mapping[str, int]) -> None:
        former(self, told_before)
        self._words.clear()
        self._tasks = _Anybody(self._tasks)

    patch.setattr(Before, "begin", begin)


class _Anybody(frozenset[str]):
    """A set of upstream tasks that seems empty, so that a stream does not wait for tasks that sent no watermark yet."""

    def __len__(self) -> int:
        return 0


def _any_end_counts(patch: pytest.MonkeyPatch) -> None:
    """The bug: one task's final watermark is taken as the end of the stream, even if the task's worker is dead."""
    patch.setattr(_Word, "reached_ms", property(lambda self: NEVER if self.ended else self.time_ms))
    patch.setattr(Upstream, "time_ms", _least_of_all)


def _least_of_all(self: Upstream) -> int:
    found = min((before.reached_ms() for before in self._before.values()), default=NO_TIME)
    newest = max((before.newest_ms for before in self._before.values()), default=NO_TIME)
    return min(newest if found == NEVER else found, self.in_hand.all_ms)


def _watermarks_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WatermarksAhead, "reached", lambda self, position: NEVER)


def _row_too_new(patch: pytest.MonkeyPatch) -> None:
    def read(self: Any, value: Any, key: Any, timestamp: int, headers: Any, state: Any) -> Any:
        return self.joined(value, state.get(table_rows.ROW))

    patch.setattr(VersionedRead, "__call__", read)


def _falsy_is_none(patch: pytest.MonkeyPatch) -> None:
    former = as_of.AsOfLeft.__call__

    def found(self: Any, value: Any, *rest: Any) -> Any:
        return [row if row["right"] else {**row, "right": None} for row in former(self, value, *rest)]

    patch.setattr(as_of.AsOfLeft, "__call__", found)


def _falsy_row_is_none(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_joins.RightRow, "__call__", lambda self, left, state: (left, state.get(table_rows.ROW) or None))


def _row_before(patch: pytest.MonkeyPatch) -> None:
    former = table_joins.JoinedRow.__call__

    def joined(self: Any, pair: Any, state: Any) -> list[Any]:
        before = state.get(table_rows.ROW)
        found = former(self, pair, state)
        return found if before is None else [before]

    patch.setattr(table_joins.JoinedRow, "__call__", joined)


def _not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadingOrder, "_complete", lambda self, now, is_ended: True)


def _ends_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadEnds, "begin", lambda self, partitions: None)


def _outer_row_too(patch: pytest.MonkeyPatch) -> None:
    former = joins.IntervalJoin._match

    def match(self: Any, *given: Any) -> bool:
        return former(self, *given) and False

    patch.setattr(joins.IntervalJoin, "_match", match)


def _outer_row_never(patch: pytest.MonkeyPatch) -> None:
    def end(self: Any, name: str, time: int, context: Any) -> None:
        context.state.pop(name, None)

    patch.setattr(joins.IntervalJoin, "on_timer", end)


def _newest_of_a_time(patch: pytest.MonkeyPatch) -> None:
    """The bug: messages with equal key and time overwrite each other, because they do not get different numbers."""
    patch.setattr(DatedValues, "last", lambda self, line, time_ms: None)


def _left_by_the_dead(patch: pytest.MonkeyPatch) -> None:
    """The bug: transactions that dead workers left open are not aborted."""
    patch.setattr(FormerOwners, "end_left", lambda self: None)


PLANTS: Plants = {
    "a repartition topic is purged ahead of the commit": _purge_ahead,
    "messages to a repartition topic are sent outside of the transaction": _sent_at_once,
    "a rewind reads the repartition topic from its start": _rewinds_between,
    "messages behind group_by move the stream time": _messages_move_time,
    "the first task before group_by tells the time of all": _first_tells_all,
    "a restart forgets what the tasks before have told": _told_forgotten,
    "the order of reading ignores watermarks": _watermarks_ignored,
    "a join behind group_by reads a row that is too new": _row_too_new,
    "an as-of join takes a falsy value for none": _falsy_is_none,
    "a join of tables takes a falsy row for none": _falsy_row_is_none,
    "an outer row is sent for a message with a match": _outer_row_too,
    "an outer row is never sent": _outer_row_never,
}
#: Bugs that appear only with live producers, which continue while workers die.
LIVE_PLANTS: Plants = {
    "the last word of a dead worker counts as its end": _any_end_counts,
}
#: Bugs that appear in joins of two topics, without ``group_by``.
JOINED_PLANTS: Plants = {
    "an input that is not read to its end is not waited for": _not_waited_for,
    "an end from before a pause or an assignment counts": _ends_stay,
    "a join of tables sends the row before": _row_before,
    "a join reads a row that is too new": _row_too_new,
    "an interval join sends an outer row for a message with a match": _outer_row_too,
    "an interval join keeps the newest message of a key and time": _newest_of_a_time,
    "what workers left open that are gone stays open": _left_by_the_dead,
}
