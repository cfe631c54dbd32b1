"""The range of past times for which the history table can return the state of a store."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from holdfast.processors.snapshots.coverage import (
    MomentUnclear,
    NotCovered,
    base_for,
    covering,
    seconds_of,
    spans,
    with_ends,
)
from tests.unit.processors.snapshots.test_plan import base_at


def snapshot(name: str, covers_from: float, taken_at: float, source: str = "incremental", **fields):
    known = {"snapshot_id": name, "covers_from": covers_from, "taken_at": taken_at, "source": source}
    return replace(base_at(1), **{**known, "latest_at": taken_at, **fields})


def former(name: str, covers_from: float, taken_at: float, partitions: int = 2):
    """An Iceberg snapshot of a store as an older version of Holdfast made it: without the latest checkpoint's time."""
    parts = base_at(*[1] * partitions).partitions
    return snapshot(name, covers_from, taken_at, latest_at=None, partitions=parts)


FIRST, SECOND, THIRD = snapshot("a", 100, 100), snapshot("b", 100, 200), snapshot("c", 300, 300)
MADE = snapshot("d", 150, 150, "history")
ALL = [THIRD, SECOND, FIRST, MADE]


def test_spans_are_joined_where_they_touch():
    assert spans(ALL) == [(100, 200), (300, 300)]


def test_the_oldest_snapshot_that_covers_a_moment_is_taken():
    assert [covering(ALL, at, "t").snapshot_id for at in (100, 100.5, 200, 300)] == ["a", "b", "b", "c"]


def test_the_base_of_a_past_version_is_a_published_snapshot_with_no_checkpoint_later_than_the_moment():
    assert base_for(ALL, 199, SECOND) == FIRST
    assert base_for(ALL, 200, SECOND) == SECOND
    assert base_for(ALL, 99, FIRST) is None
    apart = replace(SECOND, snapshot_id="apart", taken_at=180, latest_at=240)
    later = snapshot("later", 100, 300)
    for at, base in ((180, FIRST), (239.9, FIRST), (240, apart), (300, later)):
        assert base_for([later, apart, FIRST], at, later) == base
    unknown = replace(apart, latest_at=None)
    assert base_for([later, unknown, FIRST], 299, later) == FIRST


def test_a_snapshot_of_another_changelog_or_of_other_partitions_is_no_base():
    for other in (
        replace(FIRST, generation=FIRST.generation + 1),
        replace(FIRST, partitions=base_at(1, 1).partitions),
        replace(FIRST, partitions=tuple(replace(part, topic_id="id-2") for part in FIRST.partitions)),
    ):
        assert base_for([other], 150, SECOND) is None


def test_a_snapshot_whose_checkpoints_are_apart_covers_moments_from_its_latest_on():
    first = snapshot("a", 130, 100, latest_at=130)
    second = snapshot("b", 130, 200, latest_at=250)
    with pytest.raises(NotCovered, match="it begins at 1970-01-01 00:02:10 UTC, the latest checkpoint of its first"):
        covering([first], 130, "t")
    with pytest.raises(NotCovered, match="it reaches back to 1970-01-01 00:02:10 UTC"):
        covering([second, first], 129, "t")
    assert spans([second, first]) == [(130, 200)]
    assert covering([second, first], 130, "t") == covering([second, first], 200, "t") == second
    with pytest.raises(NotCovered, match="it reaches up to 1970-01-01 00:03:20 UTC"):
        covering([second, first], 201, "t")


def test_the_commit_time_bounds_the_checkpoints_of_former_manifests():
    first, second, third = former("a", 100, 100), former("b", 100, 200), former("c", 300, 300)
    late, middle, early = with_ends([(third, 340), (second, 220), (first, 150)])
    assert [each.latest_at for each in (early, middle, late)] == [150, 220, 340]
    assert [each.covers_from for each in (early, middle, late)] == [150, 150, 340]
    assert spans([late, middle, early]) == [(150, 200)]
    assert base_for([late, middle, early], 219, late) == early
    # Maintenance has removed the first snapshot, so the time that the history table covers starts at a later snapshot.
    assert with_ends([(second, 220)])[0].covers_from == 220
    assert with_ends([(former("a", 100, 100, partitions=1), 150)])[0].latest_at == 100
    known = snapshot("d", 150, 400, latest_at=420)
    assert with_ends([(known, 500), (replace(MADE, latest_at=None), 500)]) == [known, replace(MADE, latest_at=None)]


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
