"""Recovery decides for each slot (a worker's place) separately.

A slot that waits, or that needs a person, does not stop the recovery of other slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.infra.database.records import Incident
from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.recovery.attempt import RecoveryPolicy, RecoveryResult, recover
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.incidents import notice, waits_for
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.working_check import judge_working
from tests.unit.processors.lifecycle.in_memory import NAME, Installation, open_installation

LIMITS = Limits()
TRUNCATED = "Changelog orders-totals-changelog lost its first 7 records."


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    made = open_installation(tmp_path, slots=4)
    yield made
    made.registry.close()


class Disk(Conditions):
    """Reports that the disk has no free space."""

    def lasts(self, wait: object) -> str:
        return "The disk has no room."


def recovered(installed: Installation, conditions: Conditions | None = None) -> RecoveryResult | None:
    """Run one tick of the sensor and the recovery run that it requests. Returns None if it requests no run."""
    used = conditions or Conditions()
    seen = notice(NAME, installed.world, LIMITS)
    incident = seen.incident or next(iter(installed.registry.open_incidents()), None)
    if incident is None or not incident.is_open or waits_for(incident, seen.diagnoses, used):
        return None
    policy = RecoveryPolicy(limits=LIMITS, pause_s=0.0, ready_s=5.0, conditions=used)
    return recover(incident.id, installed.rollout, installed.world, run_id="run", policy=policy)


def last(installed: Installation) -> Incident:
    return installed.registry.incidents(1, processor=NAME)[0]


def kill_the_others(installed: Installation) -> None:
    for slot in ("1", "2", "3"):
        installed.worker(slot).kill()


def test_workers_beside_one_that_asks_a_person_are_restarted(installed: Installation) -> None:
    installed.worker("0").fail("changelog-truncated", TRUNCATED, store="totals")
    kill_the_others(installed)
    result = recovered(installed)
    assert result is not None
    assert result.outcome == "failed"
    assert result.reason.startswith(
        "slot 1, 2, 3 runs again; a restart cannot repair slot 0: It stopped with Failure: "
    )
    assert installed.done == ["start 1", "start 2", "start 3"]
    incident = last(installed)
    assert (incident.kind, incident.remedy) == ("changelog-truncated", "ask")
    assert incident.action.startswith("holdfast apply backfill orders --store totals --from local --yes")
    assert list(incident.asks) == ["0"]
    assert recovered(installed) is None, "the same fault is not asked twice"


def test_workers_that_die_while_one_asks_a_person_are_restarted_at_once(installed: Installation) -> None:
    installed.worker("0").fail("changelog-truncated", TRUNCATED, store="totals")
    assert recovered(installed) is not None
    first = last(installed)
    installed.pass_time(60)
    kill_the_others(installed)
    result = recovered(installed)
    assert result is not None
    assert installed.done == ["start 1", "start 2", "start 3"]
    second = last(installed)
    assert second.id == first.id + 1
    assert (second.outcome, second.action, dict(second.asks)) == ("failed", first.action, dict(first.asks))
    answer = judge_working(notice(NAME, installed.world, LIMITS).diagnoses, second, installed.now)
    assert answer is not None
    assert answer.text.endswith(f"Recovery stopped. What to do: {first.action}")


def test_a_worker_that_no_restart_helped_is_not_tried_again_with_the_others(installed: Installation) -> None:
    """A worker that three restarts did not help is not restarted again when another worker dies.

    The other worker has its own three attempts.
    """
    installed.worker("0").kill()
    installed.worker("0").restarts = False
    result = recovered(installed)
    assert result is not None
    assert (result.outcome, result.attempts) == ("failed", 3)
    installed.done.clear()
    installed.worker("2").kill()
    again = recovered(installed)
    assert again is not None
    assert (again.attempts, installed.done) == (1, ["start 2"])
    assert list(last(installed).asks) == ["0"]


def test_after_a_deployment_the_slot_is_tried_again(installed: Installation) -> None:
    installed.worker("0").kill()
    installed.worker("0").restarts = False
    assert recovered(installed) is not None
    installed.pass_time(10)
    installed.registry.record_deployment(NAME, "v1", installed.slots, installed.now)
    installed.worker("0").restarts = True
    result = recovered(installed)
    assert result is not None
    assert result.outcome == "resolved"


def test_workers_beside_one_without_room_are_restarted_and_that_one_when_there_is_room(
    installed: Installation,
) -> None:
    disk = Disk()
    installed.worker("0").fail("disk-full", "No space left on device.", path="/state")
    kill_the_others(installed)
    result = recovered(installed, disk)
    assert result is not None
    assert (result.outcome, installed.done) == ("waiting", ["start 1", "start 2", "start 3"])
    assert recovered(installed, disk) is None, "it waits"
    installed.worker("2").kill()
    again = recovered(installed, disk)
    assert again is not None
    assert (again.outcome, installed.done[3:]) == ("waiting", ["start 2"])
    end = recovered(installed)
    assert end is not None
    assert (end.outcome, installed.done[4:]) == ("resolved", ["start 0"])


def test_no_run_is_asked_for_while_one_waits_and_another_asks(installed: Installation) -> None:
    disk = Disk()
    installed.worker("0").fail("disk-full", "No space left on device.", path="/state")
    installed.worker("1").fail("changelog-truncated", TRUNCATED, store="totals")
    result = recovered(installed, disk)
    assert result is not None
    assert (result.outcome, installed.done) == ("waiting", [])
    incident = last(installed)
    assert (incident.remedy, list(incident.asks)) == ("wait", ["1"])
    answer = judge_working(notice(NAME, installed.world, LIMITS).diagnoses, incident, installed.now)
    assert answer is not None
    assert "What to do for slot 1 meanwhile: holdfast apply backfill orders --store totals" in answer.text
    assert recovered(installed, disk) is None


def test_all_wait_for_a_broker(installed: Installation) -> None:
    """Without a broker no worker can start. So recovery waits for the broker in all slots (workers' places)."""

    def away() -> None:
        raise HoldfastError("No broker answers.", action="start it")

    kill_the_others(installed)
    incident, _ = installed.registry.open_incident(NAME, "broker-away", {}, installed.now)
    installed.registry.decide_incident(incident.id, "broker-away", "wait", "")
    assert recovered(installed, Conditions(away)) is None
    assert recovered(installed) is not None
    assert installed.done == ["start 1", "start 2", "start 3"]


def test_a_person_may_have_all_slots_tried_again(installed: Installation) -> None:
    installed.worker("0").fail("changelog-truncated", TRUNCATED, store="totals")
    assert recovered(installed) is not None
    assert installed.registry.retry_incident(last(installed).id, installed.now)
    assert dict(last(installed).asks) == {}
    result = recovered(installed)
    assert result is not None
    assert (result.outcome, installed.done) == ("resolved", ["start 0"])
