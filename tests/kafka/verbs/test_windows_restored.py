"""Stream time is part of the state of a window store.

A restore sets it to the stream time of the snapshot. A backfill does not change it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.processors.lifecycle.plans.requests import Backfill, Restore
from tests.kafka.verbs.test_windows_cleared import DEFINITION, KEYS, MINUTE, T, feed, sent, stored
from tests.parts.operated import Operated
from tests.parts.warehouse_tables import take_snapshot


def stream_time_s(operated: Operated) -> float | None:
    status = operated.client.status()
    return None if status is None else status.stream_time


@pytest.mark.thorough
def test_messages_are_late_as_they_were_at_the_snapshot_and_after_a_backfill(operated: Operated) -> None:
    group = operated.group
    module = Path(os.environ["PYTHONPATH"]) / f"definition_{group.replace('-', '_')}.py"
    module.write_text(DEFINITION.format(group=group))
    operated.bring_up()
    feed(operated, 0, 1, 2)
    operated.processed(3 * KEYS)
    operated.wait_for(lambda: sent(operated) == {0: KEYS, 1: KEYS}, "two minutes to be closed")
    taken = take_snapshot(operated.settings.paths, [operated.client.checkpoint()], group, "minutes")
    at_snapshot = stream_time_s(operated)
    assert at_snapshot is not None
    assert (T + 2 * MINUTE) / 1000 <= at_snapshot < (T + 3 * MINUTE) / 1000
    # Stream time is in the third minute. So the message of minute 0 is late, but the message of minute 2 is not.
    feed(operated, 0, 2, 5)
    live = {0: KEYS, 1: KEYS, 2: 2 * KEYS}
    operated.wait_for(lambda: sent(operated) == live, "the third minute to be closed")

    operated.do(Restore(group, at=f"snap-{taken.snapshot_id}"))
    again = {**live, 2: 2 * live[2]}
    operated.wait_for(
        lambda: sum(sent(operated).values()) >= sum(again.values()), "the third minute to be closed again"
    )
    operated.processed(6 * KEYS)
    assert sent(operated) == again
    ended, time_s = stored(operated), stream_time_s(operated)

    operated.do(Backfill(group, "minutes", source="topic"))
    assert stored(operated) == ended
    assert stream_time_s(operated) == time_s
    feed(operated, 2, 6)  # the message of minute 2 is late, because the backfill kept the stream time
    operated.wait_for(lambda: sent(operated)[5], "the next minute to be closed")
    operated.processed(8 * KEYS)
    operated.wait_for(lambda: sent(operated) == {**again, 5: KEYS}, "the next minute to be closed for all keys")
