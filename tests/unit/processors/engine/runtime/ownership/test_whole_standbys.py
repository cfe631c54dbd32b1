"""When the content of a standby is that of whole commits, so that queries may see it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from holdfast.processors.engine.runtime.ownership.store_replay import note_whole


class Facts(NamedTuple):
    source: str | None = None


class Replay(NamedTuple):
    """What ``note_whole`` reads of the replay of one store."""

    store: str
    ends_commit: bool | None
    facts: Facts = Facts()


@pytest.mark.parametrize(
    ("laps", "whole"),
    [
        ([None], True),  # the standby was complete when it was opened: nothing was to replay
        ([True], True),
        ([False], False),
        ([False, True], True),
        ([False, None], False),
        ([True, None], True),
        ([None, False], False),
    ],
)
def test_a_store_is_whole_unless_its_last_records_are_a_part_of_a_commit(laps: list[bool | None], whole: bool) -> None:
    known: dict[str, bool] = {}
    found = False
    for ends_commit in laps:
        replays: Any = [Replay("totals", ends_commit), Replay("others", True)]
        found = note_whole(known, replays)
    assert found is whole


def test_a_table_of_a_source_topic_is_whole_at_each_record() -> None:
    replays: Any = [Replay("prices", False, Facts("prices"))]
    assert note_whole({}, replays)
