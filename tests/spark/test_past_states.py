"""Past states of one key, of a whole store, and as tagged versions. A moment that the history lacks is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.assets.spark import past
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.sources.changelog import READABLE
from holdfast.infra.warehouse.catalog import TableUnknown
from holdfast.processors.engine.changelog.format import decode_value
from holdfast.processors.snapshots.coverage import NotCovered
from holdfast.processors.snapshots.names import time_tag
from holdfast.processors.snapshots.plan import Wanted, plan_snapshot
from tests.spark.conftest import Changelog


@pytest.fixture(scope="module")
def lived(
    broker: str, unique: Callable[[str], str], spark: Any
) -> tuple[Changelog, list[tuple[float, dict[tuple[int, bytes], bytes]]]]:
    """A store and its content at known moments. Tests may tag past versions of the store, but must not change rows."""
    changelog = Changelog(broker, unique("lived"), spark)
    moments = []
    changelog.write(0, [(b"a", 1), (b"b", 1)])
    changelog.snapshot()
    for number, entries in enumerate([[(b"a", 2)], [(b"b", None), (b"c", 3)], [(b"a", None)]]):
        changelog.write(0, entries)
        changelog.write(1, [(b"d%d" % number, number)])
        moments.append((time.time(), dict(changelog.model)))
        while time.time() < moments[-1][0] + 0.002:
            pass  # record times have milliseconds, so wait until the next record gets a later time
        if number == 1:
            changelog.snapshot()
    changelog.write(0, [(b"a", 9)])
    changelog.snapshot(changelog.plan(wanted=Wanted.CHANGELOG))
    return changelog, moments


def test_a_store_as_it_was_at_any_moment_since_the_first_snapshot(lived: Any) -> None:
    changelog, moments = lived
    for at, model in moments:
        assert changelog.stored(past.state_at(changelog.spark, changelog.processor, "s", at)) == model


@pytest.mark.thorough
def test_one_key_as_it_was(lived: Any) -> None:
    changelog, moments = lived
    seen = []
    for at, _ in moments:
        (state,) = past.key_at(changelog.spark, changelog.processor, "s", b"a", at)
        seen.append(None if state.value is None else decode_value(state.value))
        assert (state.store_partition, state.state_key) == (0, "n")
        assert state.since is not None
        assert state.since <= at
    assert seen == [2, 2, None]
    moment = datetime.fromtimestamp(moments[0][0] + 0.001, UTC)
    assert past.key_at(changelog.spark, changelog.processor, "s", "a", moment)[0].value is not None
    with pytest.raises(TableUnknown, match=f"{changelog.processor}.nothing"):
        past.key_at(changelog.spark, changelog.processor, "nothing", "a", moment)
    assert past.key_at(changelog.spark, changelog.processor, "s", b"nobody", moments[0][0]) == []


@pytest.mark.thorough
def test_past_versions_are_tagged_and_the_published_one_stays(lived: Any) -> None:
    changelog, moments = lived
    spark, processor, table = changelog.spark, changelog.processor, f"holdfast.{changelog.processor}.s"
    head = next(versions.Versions.of(spark, table).ancestors())
    for number, (at, model) in enumerate(moments):
        key = f"2026-01-0{number + 1}-10:00"
        made = past.write_past(spark, processor, "s", key, at)
        assert (made.tag, made.made) == (f"at-2026-01-0{number + 1}-10-00", True)
        assert changelog.stored(versions.at_version(spark, table, time_tag(key))) == model
        assert (made.manifest.source, made.manifest.rows) == ("history", len(model))
        again = past.write_past(spark, processor, "s", key, at)
        assert (again.version, again.made) == (made.version, False)
    seen = versions.Versions.of(spark, table)
    assert next(seen.ancestors()) == head
    assert seen.branches("") == ["main"]
    recorded = spark.table(f"holdfast.`{processor}`._snapshots").where("source = 'history'")
    assert recorded.select("snapshot_id").distinct().count() == len(moments)


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_past_version_is_not_built_on_a_snapshot_with_a_checkpoint_of_later(changelog: Changelog, kept: bool) -> None:
    """A past version is not built on a snapshot whose latest checkpoint is after the requested time.

    ``kept`` is False for snapshots of older releases, which did not record the time of the latest checkpoint.
    """
    changelog.write(0, [(b"a", 1)])
    changelog.write(1, [(b"b", 1)])
    first = changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    early = later()
    at, then = later(), dict(changelog.model)
    changelog.write(1, [(b"b", 2)])
    late = later()
    facts = changelog.facts()
    points = tuple(replace(each, taken_at=when) for each, when in zip(facts.points, (early, late), strict=True))
    plan = plan_snapshot(replace(facts, points=points))
    assert (plan.taken_at, plan.latest_at) == (early, late)
    apart = changelog.snapshot(plan if kept else replace(plan, latest_at=None))
    after, now = later(), dict(changelog.model)
    changelog.write(0, [(b"a", 3)])
    changelog.snapshot()
    spark, processor = changelog.spark, changelog.processor
    for key, moment, model, base in (("2026-01-01", at, then, first), ("2026-01-02", after, now, apart)):
        made = past.write_past(spark, processor, "s", key, moment)
        assert changelog.stored(versions.at_version(spark, made.manifest.table, made.tag)) == model
        assert made.manifest.base == base.manifest.snapshot_id
        assert changelog.stored(past.state_at(spark, processor, "s", moment)) == model


def later() -> float:
    """Return a moment after all records that were written so far, and before the next record."""
    now = time.time()
    while time.time() < now + 0.004:
        time.sleep(0.001)  # wait, because record times have only milliseconds
    return now + 0.002


def test_what_the_history_does_not_cover_is_refused_with_from_when_on_it_does(lived: Any) -> None:
    changelog, moments = lived
    spark, processor = changelog.spark, changelog.processor
    with pytest.raises(NotCovered, match="it reaches back to"):
        past.write_past(spark, processor, "s", "2025-12-31", moments[0][0] - 3600)
    with pytest.raises(NotCovered, match="it reaches up to"):
        past.state_at(spark, processor, "s", time.time() + 60)


def test_everything_in_a_history_is_readable(lived: Any) -> None:
    changelog, _ = lived
    assert changelog.history().where(f"NOT ({READABLE})").count() == 0
