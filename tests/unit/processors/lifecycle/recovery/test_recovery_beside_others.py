"""Recovery while another installation's workers run. Recovery first checks the group's members, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable
from holdfast.infra.kafka.records import Member
from holdfast.processors.engine.changelog.names import transactional_id
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.lifecycle.recovery import strangers
from holdfast.processors.lifecycle.recovery.attempt import RecoveryPolicy, RecoveryResult, recover
from holdfast.processors.lifecycle.recovery.incidents import notice
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.strangers import find_strangers, strangers_beside
from tests.unit.processors.lifecycle.in_memory import NAME, Installation, open_installation

LIMITS = Limits()
OURS, THEIRS = "holdfast-orders-aaaaaaaaaaaa-0", "holdfast-orders-bbbbbbbbbbbb-0"
WORKER, OTHER = Member("1", OURS, "10.0.0.1"), Member("2", THEIRS, "10.0.0.2")
UNNAMED, SECOND = Member("3", "rdkafka", "10.0.0.3"), Member("4", "rdkafka", "10.0.0.4")


@pytest.mark.parametrize(
    ("members", "slots", "expected"),
    [
        ([], 1, []),
        ([WORKER], 1, []),  # a dead worker of this installation whose session has not expired yet
        ([OTHER], 1, [OTHER]),
        ([WORKER, OTHER], 2, [OTHER]),
        ([UNNAMED], 1, []),  # a worker whose settings set its client id
        ([UNNAMED, SECOND], 1, [UNNAMED, SECOND]),
        ([WORKER, UNNAMED], 1, [UNNAMED]),
        ([WORKER, UNNAMED], 2, []),
    ],
)
def test_a_member_is_a_stranger_unless_a_slot_here_accounts_for_it(
    members: list[Member], slots: int, expected: list[Member]
) -> None:
    assert strangers_beside(NAME, members, frozenset({OURS}), slots) == expected


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    made = open_installation(tmp_path, slots=2)
    yield made
    made.registry.close()


def recovered(installed: Installation, others: Callable[[], tuple[str, ...]]) -> RecoveryResult:
    seen = notice(NAME, installed.world, LIMITS)
    incident = seen.incident or installed.registry.open_incidents()[0]
    policy = RecoveryPolicy(limits=LIMITS, pause_s=0.0, ready_s=5.0, strangers=others)
    return recover(incident.id, installed.rollout, installed.world, run_id="run", policy=policy)


def test_no_worker_is_started_beside_those_of_another_installation(installed: Installation) -> None:
    installed.worker("0").kill()
    result = recovered(installed, lambda: (str(OTHER),))
    assert (result.outcome, result.attempts, installed.done) == ("failed", 0, [])
    (incident,) = installed.registry.incidents()
    assert (incident.kind, incident.remedy) == ("held-elsewhere", "ask")
    assert f"client id {THEIRS}" in incident.reason
    assert incident.action.startswith("stop orders there (`holdfast apply stop orders` in that installation)")
    assert incident.action.endswith(f"holdfast incidents retry {incident.id}")
    assert installed.registry.retry_incident(incident.id, installed.now)
    again = recovered(installed, lambda: ())
    assert (again.outcome, installed.done) == ("resolved", ["start 0"])


def test_the_next_incident_names_itself_and_not_the_one_before(installed: Installation) -> None:
    """The action of an incident must name the command that retries this incident, not the incident before it.

    A slot (a worker's place) that waits for a person keeps its action in the next incident, too. The simulation found
    this case: the command opened the former incident, but status still showed the newest one.
    """
    installed.worker("0").kill()
    assert recovered(installed, lambda: (str(OTHER),)).outcome == "failed"
    installed.pass_time(60)
    installed.worker("1").kill()
    assert recovered(installed, lambda: (str(OTHER),)).outcome == "failed"
    newest, first = installed.registry.incidents()
    assert first.action.endswith(f"holdfast incidents retry {first.id}")
    assert newest.action == first.action.replace(f"retry {first.id}", f"retry {newest.id}")
    assert installed.registry.retry_incident(newest.id, installed.now)
    again = recovered(installed, lambda: ())
    assert (again.outcome, installed.done) == ("resolved", ["start 0", "start 1"])


def test_a_worker_of_before_is_waited_for_until_its_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member whose client id is unknown is checked again until its session can have expired.

    It may be a former worker of this installation whose state folder, with its id, is lost.
    """
    monkeypatch.setattr(strangers, "_LOOK_EVERY_S", 0.0)
    folder = StateFolder(tmp_path, NAME, "0")
    folder.release()
    now = Member("9", transactional_id(NAME, folder.id, "0"), "10.0.0.1")
    looks = [[now, OTHER], [now, OTHER], [now]]
    assert find_strangers(NAME, 1, lambda group: looks.pop(0), tmp_path) == ()
    assert find_strangers(NAME, 1, lambda group: [now, OTHER], tmp_path, within_s=0.0) == (str(OTHER),)


def test_a_client_that_may_not_describe_the_group_recovers_as_before(tmp_path: Path) -> None:
    def refused(group: str) -> list[Member]:
        raise AccessRefused("no", action="grant it")

    assert find_strangers(NAME, 1, refused, tmp_path) == ()


def test_a_broker_that_is_away_when_it_is_asked_for_members_uses_no_attempt(installed: Installation) -> None:
    """If the broker is away when recovery reads the group's members, recovery waits and uses no attempt.

    An older version used up all three attempts here and closed the incident. Then no process restarted the worker.
    """

    def away() -> tuple[str, ...]:
        raise BrokerUnreachable("No answer from Kafka within 20 s.", action="Check that the broker runs.")

    installed.worker("0").kill()
    result = recovered(installed, away)
    assert (result.outcome, result.attempts, installed.done) == ("waiting", 0, [])
    (incident,) = installed.registry.open_incidents()
    assert (incident.kind, incident.remedy, incident.attempts) == ("broker-away", "wait", 0)
    assert recovered(installed, lambda: ()).outcome == "resolved"
    assert installed.done == ["start 0"]
