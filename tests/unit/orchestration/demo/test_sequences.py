"""The check of the demo's output distinguishes lost, duplicate, out-of-order and unexpected updates."""

from __future__ import annotations

import random

import pytest

from holdfast.orchestration.demo.lost_or_doubled import SequenceCheck, check_sequences

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


def plainly(updates: list[tuple[str, int]], expected: dict[str, int]) -> SequenceCheck:
    """The counts that the check must return, computed in the simplest way from their definitions."""
    keys = {key for key, _ in updates}
    of = {key: [number for each, number in updates if each == key] for key in keys | set(expected)}
    distinct = sum(len(set(numbers)) for numbers in of.values())
    rightful = sum(len(set(numbers) & set(range(1, expected.get(key, 0) + 1))) for key, numbers in of.items())
    return SequenceCheck(
        records=len(updates),
        keys=len(keys),
        lost=sum(expected.values()) - rightful,
        doubled=len(updates) - distinct,
        disordered=sum(b < a for numbers in of.values() for a, b in zip([0, *numbers], numbers, strict=False)),
        unexpected=distinct - rightful,
    )


def test_random_updates_count_as_their_definitions_say() -> None:
    draw = random.Random(7)
    for _ in range(400):
        updates = [(key, number) for key in "ab" for number in range(1, 6)]
        for _ in range(draw.randint(0, 4)):
            at = draw.randrange(len(updates))
            match draw.randrange(3):
                case 0:
                    del updates[at]
                case 1:
                    updates.insert(draw.randrange(len(updates)), updates[at])
                case _:
                    updates[at] = (draw.choice("abc"), draw.randint(0, 7))
        assert check_sequences(updates, {"a": 5, "b": 5}) == plainly(updates, {"a": 5, "b": 5}), updates
