"""A sensor's cursor may hold future times, because the clock was set back or the daemon moved to another machine."""

from __future__ import annotations

from holdfast.orchestration.sensors.grey_assets import Wanted
from holdfast.orchestration.sensors.kept_green import OTHERS_WAIT_S, Memo, _is_ready, _observed
from holdfast.orchestration.sensors.recovery import OBSERVE_EVERY_S, is_news

NOW, HOUR = 1_800_000_000.0, 3_600.0


def test_a_processor_is_observed_again_at_once() -> None:
    facts = {"instances": 1, "tasks_running": 1, "lag_records": 0}
    assert not is_news(facts, {**facts, "told_at": NOW + 1.0}, NOW)
    assert is_news(facts, {**facts, "told_at": NOW + OBSERVE_EVERY_S + HOUR}, NOW)


def test_a_topic_is_observed_again_at_once_and_without_a_rate() -> None:
    memo = Memo(observed={"in": (10, NOW + HOUR)})
    (event,) = _observed({"in": {"records": 30}}, memo, NOW)
    assert "records_per_s" not in event.metadata
    assert memo.observed == {"in": (30, NOW)}
    (event,) = _observed({"in": {"records": 7_230}}, memo, NOW + HOUR)
    assert event.metadata["records_per_s"].value == 2.0


def test_a_run_does_not_wait_for_the_time_that_was() -> None:
    wanted = Wanted("fleet", ("state/fleet/seen",), at_once=False)
    assert not _is_ready(wanted, Memo(due_since={"fleet": NOW - OTHERS_WAIT_S / 2}), NOW)
    assert _is_ready(wanted, Memo(due_since={"fleet": NOW + OTHERS_WAIT_S + HOUR}), NOW)
