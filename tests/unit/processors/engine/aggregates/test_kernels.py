"""Messages are grouped by row number with a fast sort of small integers.

Row numbers that do not fit into small integers must still form separate groups.
"""

import numpy as np
import pytest

from holdfast.processors.engine.aggregates.kernels import RANKS_MAX, Held, Numbers, Segments, running_sum


@pytest.mark.parametrize("high", [255, 256, (1 << 16) - 1, 1 << 16, 1 << 40])
def test_rows_are_told_apart_whatever_their_number(high):
    segments = Segments.of(np.array([0, high, 0, high, 1], np.int64))
    assert segments.rows.tolist() == [0, 1, high]
    assert segments.order.tolist() == [0, 2, 4, 1, 3]
    assert segments.ranks.tolist() == [0, 1, 0, 0, 1]


@pytest.mark.parametrize("count", [1, RANKS_MAX, RANKS_MAX + 1, RANKS_MAX + 2, 300])
def test_a_sum_is_that_of_adding_one_by_one(count):
    rows = np.array([5, 9] * count, np.int64)
    values = np.array([0.1 + number for number in range(2 * count)])
    segments = Segments.of(rows)
    held = Held(Numbers(np.array([1e16, 0.0])), np.array([True, False]))
    seen = segments.unsorted(running_sum(Numbers(values[segments.order]), held, segments).values).tolist()
    totals, expected = {5: 1e16, 9: None}, []
    for row, value in zip(rows.tolist(), values.tolist(), strict=True):
        before = totals[row]
        totals[row] = value if before is None else before + value
        expected.append(totals[row])
    assert seen == expected
