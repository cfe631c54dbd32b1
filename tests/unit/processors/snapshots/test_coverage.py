"""Which moments the history can give."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from holdfast.processors.snapshots.coverage import MomentUnclear, NotCovered, covering, nearest, seconds_of, spans
from tests.unit.processors.snapshots.test_plan import base_at


def snapshot(name: str, covers_from: float, taken_at: float, source: str = "incremental"):
    return replace(base_at(1), snapshot_id=name, covers_from=covers_from, taken_at=taken_at, source=source)


FIRST, SECOND, THIRD = snapshot("a", 100, 100), snapshot("b", 100, 200), snapshot("c", 300, 300)
MADE = snapshot("d", 150, 150, "history")
ALL = [THIRD, SECOND, FIRST, MADE]


def test_spans_are_joined_where_they_touch():
    assert spans(ALL) == [(100, 200), (300, 300)]


def test_the_oldest_snapshot_that_covers_a_moment_is_taken():
    assert [covering(ALL, at, "t").snapshot_id for at in (100, 100.5, 200, 300)] == ["a", "b", "b", "c"]
    assert nearest(ALL, 199) == MADE
    assert nearest(ALL, 99) is None


@pytest.mark.parametrize(
    ("manifests", "at", "said"),
    [
        (ALL, 99, "it reaches back to 1970-01-01 00:01:40 UTC"),
        (ALL, 301, "it reaches up to 1970-01-01 00:05:00 UTC"),
        (
            ALL,
            250,
            "from 1970-01-01 00:01:40 UTC to 1970-01-01 00:03:20 UTC, and at 1970-01-01 00:05:00 UTC, when a snapshot",
        ),
        ([], 5, "it has no snapshots yet"),
    ],
)
def test_what_is_not_covered_says_from_when_on_there_is_a_history(manifests, at, said):
    with pytest.raises(NotCovered, match=said):
        covering(manifests, at, "holdfast.p.s")


def test_a_gap_is_explained_by_what_made_it():
    with pytest.raises(NotCovered) as sparse:
        covering(ALL, 250, "t")
    assert "min.compaction.lag.ms leave no gap" in sparse.value.action
    with pytest.raises(NotCovered) as remade:
        covering([replace(THIRD, generation=FIRST.generation + 1), SECOND, FIRST], 250, "t")
    assert "recreated between two snapshots" in remade.value.action
    assert "min.compaction.lag.ms" not in remade.value.action


def test_moments_are_datetimes_with_a_zone_or_seconds():
    assert seconds_of(datetime(1970, 1, 1, 0, 1, 40, tzinfo=UTC)) == seconds_of(100) == 100.0
    for unclear in (datetime(1970, 1, 1), "1970-01-01"):  # noqa: DTZ001
        with pytest.raises(MomentUnclear, match="expected a datetime with a zone"):
            seconds_of(unclear)
