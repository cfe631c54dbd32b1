"""Tables of fault kinds and their remedies. Each error gets its kind at the place where it is raised."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable, MembershipLost, ProducerFenced
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.state.coherence import ChangelogFacts, check_inputs, check_source, check_sources_same
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.errors import StateCorrupt, StateDiskFailed, StateFolderTaken, StateIncoherent
from holdfast.processors.engine.state.keep_or_restore import plan_restore
from holdfast.processors.lifecycle.recovery.diagnosis import Dead, Failed, Stuck
from holdfast.processors.lifecycle.recovery.faults import TITLES, Kind, kind_of_end, kind_of_error
from holdfast.processors.lifecycle.recovery.remedies import Ask, Case, Rebuild, Restart, Wait, remedy_for

CASE = Case("fleet", stores=("aircraft",))
META = TaskMeta(stores={"aircraft": StoreOffset("log", "old", 5)})
LOG = ChangelogFacts("log", "new", 0, 9, 1e9)


def failed(cause: str, **fields: Any) -> Failed:
    return Failed({"type": "E", "cause": cause, "message": "so it is", "action": "Mend it.", "fields": fields})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("failed", Restart()),
        ("fenced", Restart()),
        ("disk-failed", Restart()),
        ("poison-message", Restart()),
        ("unheard-of", Restart()),
        ("store-corrupt", Rebuild("/state/fleet/0/t")),
        ("state-missing", Rebuild("/state/fleet/0/t")),
        ("broker-away", Wait("broker-away", "/state/fleet/0/t")),
        ("disk-full", Wait("disk-full", "/state/fleet/0/t")),
    ],
)
def test_what_recovery_mends_itself(kind: str, expected: object) -> None:
    assert remedy_for(failed(kind, path="/state/fleet/0/t"), CASE) == expected


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("changelog-missing", "holdfast apply backfill fleet --store aircraft --from local --yes"),
        ("changelog-recreated", "holdfast apply backfill fleet --store aircraft --from local --yes"),
        ("changelog-truncated", "holdfast apply backfill fleet --store aircraft --from local --yes; if"),
        ("changelog-repartitioned", "holdfast apply backfill fleet --store aircraft --from local --yes; if"),
        ("output-missing", "holdfast apply deploy fleet"),
        ("changelog-altered", "holdfast apply deploy fleet"),
        ("changelog-held", "holdfast apply compact fleet"),
        ("restore-unfinished", "holdfast apply resume"),
        ("source-recreated", "holdfast apply clear fleet --all --rewind earliest --yes"),
        ("offsets-reset", "holdfast apply reposition fleet --yes"),
        ("source-repartitioned", "holdfast apply clear fleet --all --rewind earliest --yes"),
        ("source-missing", "Mend it."),
        ("source-truncated", "holdfast apply reposition fleet --yes"),
        ("bad-configuration", "Mend it. Then: holdfast apply deploy fleet"),
    ],
)
def test_what_a_person_is_asked_for(kind: str, action: str) -> None:
    remedy = remedy_for(failed(kind), CASE)
    assert isinstance(remedy, Ask)
    assert remedy.action.startswith(action)
    assert "so it is" in remedy.sentence


def test_every_kind_has_a_title() -> None:
    assert set(TITLES) == set(get_args(Kind))


def test_a_poison_message_is_asked_about_when_it_comes_back() -> None:
    remedy = remedy_for(failed("poison-message"), Case("fleet", repeated=True))
    assert isinstance(remedy, Ask)


def test_a_process_that_is_gone_or_stuck_is_restarted() -> None:
    assert remedy_for(Dead(None, "SIGKILL"), CASE) == remedy_for(Stuck(40), CASE) == Restart()
    assert remedy_for(Dead(69, None), CASE) == Wait("broker-away")
    assert remedy_for(Dead(74, None), CASE) == Wait("disk-full")
    assert isinstance(remedy_for(Dead(64, None), CASE), Ask)
    assert [kind_of_end(each) for each in (None, 0, 1, 64, 69, 74)] == [
        "dead",
        "dead",
        "dead",
        "bad-configuration",
        "broker-away",
        "disk-full",
    ]


@pytest.mark.parametrize("found", [failed("bad-configuration"), Dead(64, None)])
def test_a_version_that_never_worked_is_taken_back(found: Any) -> None:
    remedy = remedy_for(found, Case("fleet", former="v1"))
    assert isinstance(remedy, Ask)
    assert (remedy.kind, "This version never worked; v1 did." in remedy.why) == ("bad-deploy", True)
    once = Dead(1, None)
    assert remedy_for(once, Case("fleet", former="v1")) == Restart()
    assert isinstance(remedy_for(once, Case("fleet", former="v1", repeated=True)), Ask)


def test_what_each_version_would_meet_is_repaired_before_a_version_is_taken_back() -> None:
    remedy = remedy_for(failed("offsets-reset"), Case("fleet", former="v1", repeated=True))
    assert isinstance(remedy, Ask)
    assert remedy.action == "holdfast apply reposition fleet --yes"
    assert isinstance(remedy_for(failed("store-corrupt"), Case("fleet", former="v1", repeated=True)), Rebuild)


def test_state_without_changelogs_is_not_set_aside() -> None:
    remedy = remedy_for(failed("store-corrupt"), Case("fleet", restorable=False))
    assert isinstance(remedy, Ask)
    assert "no other copy of this state exists" in remedy.why


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BrokerUnreachable("m", action="a"), "broker-away"),
        (AccessRefused("m", action="a"), "bad-configuration"),
        (ProducerFenced("m", action="a"), "fenced"),
        (MembershipLost("m", action="a"), "fenced"),
        (ProcessingFailed("m", action="a"), "poison-message"),
        (StateCorrupt("m", action="a"), "store-corrupt"),
        (StateDiskFailed("m", action="a"), "disk-failed"),
        (StateDiskFailed("m", action="a", cause="disk-full"), "disk-full"),
        (StateFolderTaken("m", action="a"), "bad-configuration"),
        (HoldfastError("m", action="a"), "failed"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else each,
)
def test_errors_tell_their_kind(error: HoldfastError, kind: str) -> None:
    assert kind_of_error(error.as_dict()) == kind
    assert "cause" not in error.fields


def refusal(guard: Any) -> tuple[str, dict[str, Any]]:
    with pytest.raises(StateIncoherent) as refused:
        guard()
    return kind_of_error(refused.value.as_dict()), refused.value.fields


def test_the_coherence_guard_tells_what_it_met() -> None:
    kind, fields = refusal(lambda: plan_restore("t-0", META, {"aircraft": LOG}, 0.0))
    assert (kind, fields["store"]) == ("changelog-recreated", "aircraft")
    cut = ChangelogFacts("log", "old", 7, 9, 1e9)
    kind, fields = refusal(lambda: plan_restore("t-0", META, {"aircraft": cut}, 0.0))
    assert (kind, fields["store"]) == ("changelog-truncated", "aircraft")
    assert refusal(lambda: check_inputs("t-0", {"aircraft": {"in": 9}}, {"in": 0}))[0] == "offsets-reset"
    assert refusal(lambda: check_inputs("t-0", {"aircraft": {}}, {"in": 5}))[0] == "changelog-truncated"
    assert refusal(lambda: check_source("in", 0, 5, 8, 9))[0] == "source-truncated"
    assert refusal(lambda: check_source("in", 0, 5, 0, 3))[0] == "source-recreated"
    assert refusal(lambda: check_sources_same("t-0", {"in": "a"}, {"in": "b"}))[0] == "source-recreated"
