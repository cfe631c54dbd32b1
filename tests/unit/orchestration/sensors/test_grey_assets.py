"""A sensor requests runs for grey assets, so that they become green. If an asset stays grey, it gives the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.infra.system.memory import available_mb
from holdfast.orchestration.sensors.grey_assets import RETRY_AFTER_S, TRIES, AssetFacts, Memory, Subject, Wanted, decide

ENOUGH, LITTLE = Memory(4_000, 1_792), Memory(900, 1_792)
STATE = AssetFacts("state/fleet/aircraft_state", "state", False, True)
SNAPSHOT = AssetFacts("warehouse/fleet/aircraft_snapshot", "warehouse", False, True)
UPKEEP = AssetFacts("warehouse/fleet/aircraft_maintenance", "warehouse", False, True)
PROCESSOR = AssetFacts("processors/fleet/fleet_processor", "processors", True, True)
NEW = (PROCESSOR, STATE, SNAPSHOT, UPKEEP)


def made(asset: AssetFacts, *alone: str, inside: tuple[str, ...] = ()) -> AssetFacts:
    return AssetFacts(asset.name, asset.layer, True, asset.runnable, alone, inside)


def test_a_new_processor_gets_one_run_that_checkpoints_and_publishes() -> None:
    decision = decide([Subject("fleet", NEW)], ENOUGH)
    assert decision.runs == [Wanted("fleet", (STATE.name, SNAPSHOT.name, UPKEEP.name))]
    assert decision.runs[0].is_publishing
    assert decision.reasons == {}


def test_one_run_materialises_and_takes_the_checks_of_the_rest_along() -> None:
    deployed = made(PROCESSOR, "proven")
    (run,) = decide([Subject("fleet", (deployed, STATE, SNAPSHOT, UPKEEP))], ENOUGH).runs
    assert run == Wanted("fleet", (STATE.name, SNAPSHOT.name, UPKEEP.name), ((PROCESSOR.name, "proven"),))


def test_a_run_waits_a_while_for_the_report_of_what_a_command_deployed() -> None:
    untold = AssetFacts(PROCESSOR.name, "processors", False, True)
    (run,) = decide([Subject("fleet", (untold, STATE, SNAPSHOT, UPKEEP))], ENOUGH).runs
    assert (run.at_once, run.checks) == (False, ())


def test_several_processors_share_the_run_that_starts_a_jvm() -> None:
    other = AssetFacts("warehouse/routes/routes_snapshot", "warehouse", False, True)
    decision = decide([Subject("fleet", (STATE, SNAPSHOT)), Subject("routes", (other,))], ENOUGH)
    assert [each.assets for each in decision.runs] == [(STATE.name, SNAPSHOT.name, other.name)]


def test_a_snapshot_takes_its_checkpoint_first() -> None:
    (run,) = decide([Subject("fleet", (made(STATE), SNAPSHOT, made(UPKEEP)))], ENOUGH).runs
    assert run.assets == (STATE.name, SNAPSHOT.name)


def test_without_memory_the_state_runs_and_the_table_says_why_it_is_grey() -> None:
    decision = decide([Subject("fleet", NEW)], LITTLE)
    assert decision.runs == [Wanted("fleet", (STATE.name,))]
    assert set(decision.reasons) == {SNAPSHOT.name, UPKEEP.name}
    assert "needs 1,792 MiB of memory, 900 MiB are available" in decision.reasons[SNAPSHOT.name]


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (Subject("fleet", NEW, works=False), "as soon as processor fleet works"),
        (Subject("fleet", NEW, busy=True), "a run for it is under way"),
        (Subject("fleet", NEW, failed=1, since_failure_s=RETRY_AFTER_S - 1), "is repeated soon"),
        (Subject("fleet", NEW, failed=TRIES, since_failure_s=1e6), "3 runs failed in a row"),
    ],
)
def test_what_waits_says_for_what(subject: Subject, said: str) -> None:
    decision = decide([subject], ENOUGH)
    assert decision.runs == []
    assert said in decision.reasons[SNAPSHOT.name]


def test_a_failed_run_is_repeated_after_a_pause() -> None:
    assert decide([Subject("fleet", NEW, failed=2, since_failure_s=2 * RETRY_AFTER_S)], ENOUGH).runs


def test_checks_that_did_not_run_since_get_a_run_of_their_own() -> None:
    green = made(STATE, "restore_rehearsed"), made(SNAPSHOT), made(UPKEEP)
    decision = decide([Subject("fleet", green)], LITTLE)
    assert decision.runs == [Wanted("fleet", checks=((STATE.name, "restore_rehearsed"),), at_once=False)]
    assert decide([Subject("fleet", tuple(map(made, NEW)))], LITTLE).runs == []


def test_what_a_command_deployed_is_judged_without_a_run() -> None:
    deployed = made(PROCESSOR, inside=("healthy",))
    decision = decide([Subject("fleet", (deployed, made(STATE, inside=("matches_changelog",))))], ENOUGH)
    assert (decision.judged, decision.runs) == ([PROCESSOR.name], [])


def test_topics_that_exist_are_reported_and_absent_ones_are_not() -> None:
    topic = AssetFacts("topics/flights", "topics", False, False)
    absent = AssetFacts("topics/gone", "topics", False, False, exists=False)
    assert decide([Subject("", (topic, absent))], ENOUGH).present == [topic.name]


def test_memory_is_that_of_the_machine_or_of_a_smaller_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    assert available_mb(meminfo, tmp_path) == 4096
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1048576\n")
    assert available_mb(meminfo, tmp_path) == 4096
    (tmp_path / "memory.max").write_text(f"{1 << 30}\n")
    assert available_mb(meminfo, tmp_path) == 1023
    assert available_mb(tmp_path / "none", tmp_path) is None
    assert Memory(None, 1_792).allows
