"""Lost, doubled, disordered and unexpected updates are told apart."""

from __future__ import annotations

import pytest

from holdfast.orchestration.demo.sequences import SequenceCheck, check_sequences

EXPECTED = {"a": 3, "b": 1}


@pytest.mark.parametrize(
    ("updates", "found"),
    [
        ([("a", 1), ("b", 1), ("a", 2), ("a", 3)], SequenceCheck(4, 2, 0, 0, 0, 0)),
        ([("a", 1), ("a", 3)], SequenceCheck(2, 1, 2, 0, 0, 0)),
        ([("a", 1), ("a", 2), ("a", 2), ("a", 3), ("b", 1)], SequenceCheck(5, 2, 0, 1, 0, 0)),
        ([("a", 1), ("a", 3), ("a", 2), ("b", 1)], SequenceCheck(4, 2, 0, 0, 1, 0)),
        ([("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("c", 1)], SequenceCheck(6, 3, 0, 0, 0, 2)),
        ([], SequenceCheck(0, 0, 4, 0, 0, 0)),
    ],
)
def test_what_is_found(updates: list[tuple[str, int]], found: SequenceCheck) -> None:
    assert check_sequences(updates, EXPECTED) == found
    assert (found.mismatches == 0) == (found == SequenceCheck(4, 2, 0, 0, 0, 0))
