"""The rule that decides whether a window is closed. Three forms must agree.

The forms are: for one message, for a column of messages, and as the latest time at which a closed window ends.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.processors.engine.windows.bounds import closed_upto, is_closed

_TIME = st.integers(-1, 2**41)


@given(st.lists(st.tuples(_TIME, _TIME), min_size=1), st.integers(0, 2**35), _TIME)
def test_columns_and_messages_agree(windows: list[tuple[int, int]], grace_ms: int, closed_ms: int) -> None:
    one_by_one = [is_closed(due, grace_ms, time, closed_ms) for due, time in windows]
    assert one_by_one == [due <= closed_upto(grace_ms, time, closed_ms) for due, time in windows]
    due, time = (np.array(column, np.int64) for column in zip(*windows, strict=True))
    assert is_closed(due, grace_ms, time, closed_ms).tolist() == one_by_one


def test_a_window_takes_messages_until_its_grace_is_over_and_never_again() -> None:
    assert not is_closed(1_000, 100, 1_099, 0)
    assert is_closed(1_000, 100, 1_100, 0)
    assert is_closed(1_000, 100, 0, 1_000)
