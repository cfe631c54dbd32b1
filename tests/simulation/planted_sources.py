"""Bugs that tests plant in the restore of tables from their topics, and in the consumers that replay them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.joins import source_rows
from holdfast.processors.engine.runtime.ownership import changelog_replay as restore
from holdfast.processors.testing.consumers import InMemoryReplayer


def too_far(patch: pytest.MonkeyPatch) -> None:
    """The bug: a restore reads rows after the committed offset, which are not processed yet."""
    patch.setattr(restore, "bisect_left", lambda offsets, end: len(offsets))


def put_aside(patch: pytest.MonkeyPatch) -> None:
    """The bug: a restore makes a table row of a record that processing had sent to the dead-letter topic."""
    real = source_rows.deserializer

    def lenient(name: str) -> Callable[[bytes], Any]:
        def reads(raw: bytes) -> Any:
            try:
                return real(name)(raw)
            except ValueError:
                return "unreadable"

        return reads

    patch.setattr(source_rows, "deserializer", lenient)


def undead(patch: pytest.MonkeyPatch) -> None:
    """The bug: a restore keeps rows that were deleted."""
    real = restore.rows_of

    def without(*given: Any) -> tuple[list[bytes], list[bytes | None]]:
        found = [(key, stored) for key, stored in zip(*real(*given), strict=True) if stored is not None]
        return [key for key, _ in found], [stored for _, stored in found]

    patch.setattr(restore, "rows_of", without)


def timeless(patch: pytest.MonkeyPatch) -> None:
    """The bug: restored rows have another timestamp than processed rows."""
    real = restore.rows_of
    patch.setattr(restore, "rows_of", lambda log, keys, values, times: real(log, keys, values, [0 for _ in times]))


def former_positions(patch: pytest.MonkeyPatch) -> None:
    """The bug: after an assignment, a replay reports its former positions until records arrive.

    The client library behaves in this way.
    """
    assign, positions, look = InMemoryReplayer.assign, InMemoryReplayer.positions, InMemoryReplayer._look
    former: dict[Partition, int] = {}
    asked: list[object] = [None]

    def assigns(self: InMemoryReplayer, starts: Mapping[Partition, int], timed: Collection[str] = ()) -> None:
        former.update(self._positions)
        assign(self, starts, timed)

    def looks(self: InMemoryReplayer, records_max: int) -> object:
        if self._starts is asked[0]:
            return look(self, records_max)
        asked[0] = self._starts  # with this bug, the first poll after an assignment returns nothing
        return [], {}

    patch.setattr(InMemoryReplayer, "assign", assigns)
    patch.setattr(InMemoryReplayer, "_look", looks)
    patch.setattr(InMemoryReplayer, "positions", lambda self, of: {**former, **positions(self, of)})


PLANTS = {
    "a restore takes rows that are not processed yet": too_far,
    "a restore takes a message that was put aside for a row": put_aside,
    "deletes of a table's topic are left out of a restore": undead,
    "the rows of a restore have another time": timeless,
    "a replay takes the position of the one before for its own": former_positions,
}
