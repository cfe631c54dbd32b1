"""Waiting for a run through Dagster's webserver. The progress names the runs that are ahead of it in the queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.assets.keys import snapshot_key
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.commands.reports.status import describe
from holdfast.orchestration.host import local
from holdfast.orchestration.view import past_runs
from holdfast.orchestration.view.asset_page import read_pages
from holdfast.orchestration.view.past_runs import read_runs
from holdfast.orchestration.view.progress import Progress
from holdfast.orchestration.view.runs import DagsterRuns, RunFailed
from holdfast.orchestration.view.webserver import NoAnswer


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    settings = load_settings(home=tmp_path_factory.mktemp("home"))
    local.start_webserver(settings)
    yield settings
    local.stop(settings, local.WEBSERVER)


@pytest.mark.thorough
def test_a_run_without_a_daemon_is_told_as_queued_and_named(settings: Settings) -> None:
    """No daemon runs in this test, so both runs stay in the queue, and the progress says that no daemon runs."""
    runs, told = DagsterRuns(settings), list[Progress]()
    first, second = (runs.launch([snapshot_key("fleet", "aircraft").path]) for _ in range(2))
    with pytest.raises(RunFailed, match=f"{second} is queued and did not succeed"):
        runs.wait(second, told.append, timeout_s=2.5)
    assert {each.state for each in told} == {
        f"run {second[:8]} is queued, and Dagster's daemon does not run: start it: `holdfast up`"
    }
    assert f"behind run {first[:8]} (warehouse/fleet/aircraft_snapshot; queued for " in told[-1].now
    with pytest.raises(RunFailed, match="is queued and did not succeed"):
        runs.wait(first, told.append, timeout_s=2.5)
    assert "behind" not in told[-1].now, "the first one waits for no other"
    answered, failing = read_runs(settings, 10), pytest.MonkeyPatch()
    assert [each.run_id for each in answered] == [second, first]
    assert answered[0].assets == (("warehouse", "fleet", "aircraft_snapshot"),)

    def no_answer(*_: object, **__: object) -> dict[str, object]:
        raise NoAnswer("stopped")

    with failing.context() as patched:
        patched.setattr(past_runs, "ask", no_answer)
        assert read_runs(settings, 10) == answered, "the database has the same runs as the webserver's answer"


@pytest.mark.thorough
def test_status_reads_the_assets_and_their_conditions(settings: Settings) -> None:
    pages = read_pages(settings)
    assert pages is not None
    assert {each.condition for each in pages} == {None}, "Holdfast's own assets follow the sensor `kept_green`"
    assert describe(settings, "orphans")["processors"] == []
