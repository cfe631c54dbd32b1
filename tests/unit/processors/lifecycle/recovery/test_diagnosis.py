"""Cases for the diagnosis: facts about a slot (a worker's place), and the diagnosis that must follow from them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.infra.database.records import Deployment, DesiredState, Incident, Outcome
from holdfast.infra.deploy.program_files import ProgramState, ProgramStatus
from holdfast.processors.lifecycle.recovery.diagnosis import (
    Dead,
    Diagnosis,
    Differs,
    Failed,
    Healthy,
    NotDeployed,
    Starting,
    Stuck,
    Waiting,
    admits_incident,
    diagnose,
    flaps,
    worst,
)
from holdfast.processors.lifecycle.recovery.limits import Limits

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LIMITS = Limits(stuck_after_s=30, start_s=60, stop_s=60)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def wish(desired: DesiredState = "deployed", seconds: float = 3600) -> Deployment:
    return Deployment("fleet", "v1", ("0",), desired, 1, ago(seconds))


def program(state: ProgramState, seconds: float | None = 1000, **ended: Any) -> ProgramStatus:
    alive = state in ("RUNNING", "STARTING", "STOPPING")
    since = None if seconds is None else ago(seconds)
    return ProgramStatus("fleet-0", state, 7 if alive else None, ended.get("status"), since, ended.get("signal"))


def told(**facts: Any) -> dict[str, Any]:
    return {"heartbeat_at": ago(1).timestamp(), **facts}


def unwanted(verb: str) -> Differs:
    said = "It runs, but it is not recorded as a worker that should run: an apply was broken off."
    return Differs("unwanted-worker", said, f"holdfast apply {verb}")


ERROR = {"type": "StateLost", "message": "truncated", "action": "restore"}
CASES: list[tuple[str, ProgramStatus | None, dict[str, Any] | None, Deployment | None, Diagnosis]] = [
    ("never deployed", None, None, None, NotDeployed()),
    ("meant to be down", program("STOPPED"), None, wish("stopped"), NotDeployed()),
    ("being stopped", program("RUNNING"), told(), wish("stopped", 59), NotDeployed(alive=True)),
    (
        "down but up",
        program("RUNNING"),
        told(),
        wish("stopped", 60),
        unwanted("stop fleet"),
    ),
    ("dead in a deployment", program("EXITED"), None, wish("deploying", 900), Starting("being deployed for 900 s")),
    ("unknown to the supervisor", None, None, wish(), Dead(None, None)),
    ("killed", program("EXITED", signal="SIGKILL"), None, wish(), Dead(None, "SIGKILL")),
    ("ended with last words", program("EXITED", status=1), told(phase="failed", error=ERROR), wish(), Failed(ERROR)),
    ("bad configuration", program("FATAL", status=64), None, wish(), Dead(64, None)),
    ("stopped just now", program("STOPPED", 5), None, wish(), Starting("stopped on request for 5 s")),
    ("stopped and forgotten", program("STOPPED", 61), None, wish(), Dead(None, None)),
    ("never started", program("STOPPED", None), None, wish(), Dead(None, None)),
    ("stopping", program("STOPPING"), told(), wish(), Starting("stopping on request")),
    ("first seconds", program("STARTING", 0), None, wish(), Starting("starting for 0 s")),
    ("no answer yet", program("RUNNING", 59), None, wish(), Starting("starting for 59 s")),
    ("never answered", program("RUNNING", 61), None, wish(), Stuck(61)),
    ("another process answers", program("RUNNING", 61), told(pid=8), wish(), Stuck(61)),
    ("running", program("RUNNING"), told(), wish(), Healthy("running")),
    (
        "paused",
        program("RUNNING"),
        told(paused=True),
        wish(),
        Differs(
            "paused", "It is paused and reads no input; 0 records wait.", "holdfast apply restart fleet", warns=True
        ),
    ),
    ("paused, restoring", program("RUNNING"), told(paused=True, phase="restoring"), wish(), Starting("restoring")),
    ("of a former Holdfast", program("RUNNING"), told(code_version=""), wish(), Healthy("running")),
    (
        "another version",
        program("RUNNING"),
        told(code_version="v0"),
        wish(),
        Differs(
            "other-version",
            "It runs version v0, but version v1 is deployed.",
            "holdfast apply deploy fleet",
        ),
    ),
    ("restoring", program("RUNNING"), told(phase="restoring", code_version="v0"), wish(), Starting("restoring")),
    ("waiting for its broker", program("RUNNING"), told(phase="waiting"), wish(), Waiting()),
    ("still beating", program("RUNNING"), told(heartbeat_at=ago(29.9).timestamp()), wish(), Healthy("running")),
    ("loop stands still", program("RUNNING"), told(heartbeat_at=ago(30).timestamp()), wish(), Stuck(30)),
    (
        "clock set forward",
        program("RUNNING"),
        told(heartbeat_at=ago(3600).timestamp(), silent_s=0.2),
        wish(),
        Healthy("running"),
    ),
    ("clock set back", program("RUNNING"), told(heartbeat_at=ago(-3600).timestamp(), silent_s=31.0), wish(), Stuck(31)),
    ("gave up", program("RUNNING"), told(phase="failed", error=ERROR), wish(), Failed(ERROR)),
]


@pytest.mark.parametrize(
    ("program", "status", "desired", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_facts_and_their_diagnosis(
    program: ProgramStatus | None,
    status: dict[str, Any] | None,
    desired: Deployment | None,
    expected: Diagnosis,
    make_status: Any,
) -> None:
    answer = None if status is None else make_status(**status)
    assert diagnose(program, answer, desired, NOW, LIMITS) == expected


@pytest.mark.parametrize(
    ("answered_s", "expected"),
    [(5, Starting("not answering for 5 s")), (30, Stuck(30)), (2000, Stuck(1000))],
    ids=["one question went unanswered", "silent for long", "the answer was of the process before"],
)
def test_a_silence_counts_from_the_last_answer(answered_s: float, expected: Diagnosis) -> None:
    found = diagnose(program("RUNNING", 1000), None, wish(), NOW, LIMITS, answered_at=ago(answered_s))
    assert found == expected


@pytest.mark.parametrize(
    ("state", "desired", "expected"),
    [
        ("RUNNING", wish(), unwanted("scale fleet 1")),
        ("RUNNING", wish("deploying", 9), Starting("being deployed for 9 s")),
        ("STOPPING", wish(), Starting("stopping on request")),
    ],
    ids=["left over", "a change of workers goes on", "leaving"],
)
def test_a_worker_beyond_the_record_is_never_healthy(
    state: ProgramState, desired: Deployment, expected: Diagnosis, make_status: Any
) -> None:
    answer = make_status(heartbeat_at=ago(1).timestamp())
    assert diagnose(program(state), answer, desired, NOW, LIMITS, slot="2") == expected


def test_each_diagnosis_says_itself() -> None:
    every: list[Diagnosis] = [
        Healthy("running"),
        NotDeployed(),
        NotDeployed(alive=True),
        Starting("restoring"),
        Waiting(),
        Dead(None, "SIGKILL"),
        Dead(64, None),
        Dead(None, None),
        Stuck(31.4),
        Failed(ERROR),
        unwanted("stop fleet"),
    ]
    assert [(each.kind, each.needs_recovery, each.sentence) for each in every] == [
        ("healthy", False, "It is running."),
        ("not-deployed", False, "It should not run."),
        ("not-deployed", False, "It should not run, but it does."),
        ("starting", False, "It is restoring."),
        ("broker-away", False, "It is waiting for its broker, or for its schema registry."),
        ("dead", True, "Its process was killed by SIGKILL."),
        ("bad-configuration", True, "Its process ended with status 64 (bad configuration)."),
        ("dead", True, "It has no process."),
        ("stuck", True, "Its process has sent no heartbeat for 31 s."),
        ("failed", True, "It stopped with StateLost: truncated"),
        (
            "unwanted-worker",
            False,
            "It runs, but it is not recorded as a worker that should run: an apply was broken off.",
        ),
    ]


def test_the_worst_of_several_names_the_incident() -> None:
    assert worst({"0": Healthy("running"), "1": Dead(1, None), "2": Stuck(40)}) == Dead(1, None)
    assert worst({"0": Healthy("running"), "1": Starting("restoring")}) == Starting("restoring")
    left = unwanted("scale fleet 1")
    assert worst({"0": Healthy("running"), "1": Starting("restoring"), "2": left}) == left
    assert worst({"0": Dead(1, None), "2": left}) == Dead(1, None)
    paused = Differs("paused", "It is paused.", "restart it", warns=True)
    assert worst({"0": paused, "2": left}) == left, "what is wrong comes before what may be meant so"
    assert worst({"0": paused, "1": Starting("restoring")}) == paused
    assert worst({}) == NotDeployed()


def incident(
    opened_s: float, closed_s: float | None = None, outcome: Outcome | None = None, remedy: str = ""
) -> Incident:
    closed_at = None if closed_s is None else ago(closed_s)
    detail = {"0": "It stopped with no"}
    return Incident(1, "fleet", "dead", detail, ago(opened_s), None, None, 0, closed_at, outcome, "", (), remedy)


@pytest.mark.parametrize(
    ("recent", "deployed_s", "expected"),
    [
        ([], 3600, True),
        ([incident(10)], 3600, True),
        ([incident(20, 10, "resolved")], 3600, True),
        ([incident(20, 10, "failed")], 3600, False),
        ([incident(20, 10, "failed")], 5, True),
        ([incident(1000, 901, "failed")], 3600, True),
        ([incident(s + 5, s, "resolved") for s in (10, 20, 30, 40, 50)], 3600, False),
        ([incident(s + 5, s, "resolved") for s in (10, 20, 30, 40, 50)], 5, True),
        ([incident(s + 5, s, "resolved") for s in (10, 20, 30, 40, 950)], 3600, True),
    ],
    ids=[
        "the first",
        "the open one",
        "after a success",
        "restarts do not help",
        "deployed again since",
        "time to try again",
        "crashes again after each restart",
        "so it did before this deployment",
        "not that often",
    ],
)
def test_which_failures_get_an_incident(recent: list[Incident], deployed_s: float, expected: bool) -> None:
    assert admits_incident(recent, wish(seconds=deployed_s), NOW, Limits()) is expected


def test_who_was_asked_is_not_asked_again_for_the_same() -> None:
    asked = incident(5000, 4000, "failed", "ask")
    said = {"0": "It stopped with no"}
    assert not admits_incident([asked], wish(seconds=9000), NOW, Limits(), sick=said)
    assert admits_incident([asked], wish(seconds=9000), NOW, Limits(), sick={"0": "It stopped with another"})
    assert admits_incident([asked], wish(seconds=10), NOW, Limits(), sick=said)
    assert admits_incident([incident(5000, 4000, "failed", "restart")], wish(seconds=9000), NOW, Limits(), sick=said)


def test_a_slot_that_was_not_left_to_a_person_gets_an_incident() -> None:
    asked = replace(incident(20, 10, "failed", "ask"), asks={"0": "It stopped with no"})
    assert not admits_incident([asked], wish(), NOW, Limits(), sick={"0": "It stopped with no"})
    assert not admits_incident([asked], wish(), NOW, Limits(), sick={"0": "It has no process."})
    assert admits_incident([asked], wish(), NOW, Limits(), sick={"0": "It stopped with no", "1": "It has no process."})
    assert admits_incident([asked], wish(), NOW, Limits(), sick={"1": "It stopped with no"})


def test_what_comes_up_and_dies_again_and_again_flaps_once() -> None:
    five = [incident(s + 5, s, "resolved") for s in (10, 20, 30, 40, 50)]
    assert flaps(five, wish(), NOW, Limits())
    assert not flaps(five[:4], wish(), NOW, Limits())
    assert not flaps(five, wish(seconds=5), NOW, Limits())
    assert not flaps([incident(9, 5, "failed"), *five], wish(), NOW, Limits())
    assert not flaps([incident(9), *five], wish(), NOW, Limits())
