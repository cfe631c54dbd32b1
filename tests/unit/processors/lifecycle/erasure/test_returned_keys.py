"""The check that erased keys stay gone decides from the entries that were found. Its texts name no key."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.processors.lifecycle.erasure.returned import judge_returned

MARK, OTHER = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("erased", "again", "passed", "warns", "words"),
    [
        (0, {}, True, False, "No key of orders was erased."),
        (2, {}, True, False, "No erased key has state; 2 erased."),
        (
            2,
            {MARK: 3},
            False,
            False,
            f"1 erased key has state again, 3 entries, by later messages. Hashes of the keys: {MARK[:12]}.",
        ),
        (2, {MARK: 3, OTHER: 4}, False, False, "2 erased keys have state again, 7 entries"),
        (2, None, False, True, "nobody knows whether erased keys came back: It is silent."),
    ],
)
def test_the_verdict(erased: int, again: Mapping[str, int] | None, passed: bool, warns: bool, words: str) -> None:
    found = judge_returned("orders", erased, again, "It is silent.")
    assert (found.passed, found.warns) == (passed, warns)
    assert words in found.sentence
    assert bool(found.action) is not passed
    assert MARK not in found.sentence + found.action
