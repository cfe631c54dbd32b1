"""Plans of erasures: the order of places, what is refused, and that no text names the key."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.connectors import ConnectorSpec, ExternalSystem
from holdfast.processors.lifecycle.plans.certificates import Certificate, ErasureFacts, Proof, decode, in_text
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.facts import Counted, InstanceFacts
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Erase, RequestInvalid
from holdfast.processors.lifecycle.plans.stages import Certify, EraseCopy, NoteErasure, SetTopicConfig
from holdfast.processors.lifecycle.plans.way_on import is_undone_at_the_end
from holdfast.processors.lifecycle.verbs.state.erase import EAGER, expiry
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import orders_topology, stopped, world_of

TOPOLOGY = orders_topology()
REQUEST = Erase("orders", "alice@example.org")


def places(plan: Plan) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in plan.stages if isinstance(each, EraseCopy)]


def test_state_comes_first_and_each_place_comes_after_what_it_is_filled_from() -> None:
    plan = decide(REQUEST, world_of(TOPOLOGY), TOPOLOGY)
    assert isinstance(plan.verdict, Ready)
    assert isinstance(plan.stages[0], NoteErasure), "the registry knows of the erasure before anything is deleted"
    assert isinstance(plan.stages[-1], Certify)
    assert places(plan) == [
        ("state", "totals+seen"),
        ("changelog", "orders-totals-changelog"),
        ("changelog", "orders-seen-changelog"),
        ("files", "orders"),
        ("checkpoints", "orders"),
        ("table", "totals"),
        ("table", "seen"),
        ("exports", "orders"),
        ("archives", "orders"),
        ("registry", "orders"),
    ]
    assert plan.destructive
    assert plan.permanent
    assert plan.after_kill == "go on"


def test_what_sinks_have_stored_is_named_and_stays() -> None:
    rows = ConnectorSpec("rows", "sink", "SqlSink", ExternalSystem("sql", "postgresql://dwh rows"), ("orders",))
    own = ConnectorSpec("own", "sink", "Own", ExternalSystem(), ("orders",))
    source = ConnectorSpec("clicks", "source", "SqlSource", ExternalSystem(), ("orders",))
    topology = replace(TOPOLOGY, connectors=(rows, own, source))
    plan = decide(REQUEST, world_of(topology), topology)
    last = plan.stages[-1]
    assert isinstance(last, Certify)
    assert last.sinks == {"rows": "postgresql://dwh rows", "own": ""}
    assert "what sink rows has stored in postgresql://dwh rows stays: delete it in that system" in plan.findings
    assert any("sinks have stored in other systems" in each for each in plan.kept)
    assert not any("sinks" in each for each in decide(REQUEST, world_of(TOPOLOGY), TOPOLOGY).kept)


def test_no_text_of_a_plan_names_the_key() -> None:
    plan = decide(REQUEST, world_of(TOPOLOGY), TOPOLOGY)
    assert "alice" not in explain(plan)


def test_the_former_compaction_is_set_again_also_after_an_abandoned_erasure() -> None:
    facts = world_of(TOPOLOGY)
    plan = decide(REQUEST, facts, TOPOLOGY)
    eager, former, *_ = [each for each in plan.stages if isinstance(each, SetTopicConfig)]
    assert eager.config == EAGER
    assert former.config["min.compaction.lag.ms"] == "3600000"

    log = facts.topics["orders-totals-changelog"]
    left = TopicFacts(log.name, log.topic_id, log.partitions, log.replication, {**log.config, **EAGER})
    again = decide(REQUEST, msgspec.structs.replace(facts, topics={**facts.topics, log.name: left}), TOPOLOGY)
    _, repaired, *_ = [each for each in again.stages if isinstance(each, SetTopicConfig)]
    assert repaired.config == former.config


def test_a_processor_that_does_not_run_is_refused_with_the_command_that_starts_it() -> None:
    plan = decide(REQUEST, stopped(TOPOLOGY), TOPOLOGY)
    assert isinstance(plan.verdict, Refused)
    assert "`holdfast deploy orders`" in plan.verdict.action
    starting = world_of(TOPOLOGY, instances=(InstanceFacts("0", True, "restoring"),))
    plan = decide(REQUEST, starting, TOPOLOGY)
    assert isinstance(plan.verdict, Refused)
    assert "not running yet" in plan.verdict.sentence


def test_an_unknown_key_is_searched_in_all_places_and_the_plan_tells_it() -> None:
    nothing = {store.name: Counted(0, 0, "the running workers") for store in TOPOLOGY.stores}
    plan = decide(REQUEST, world_of(TOPOLOGY, counted=nothing), TOPOLOGY)
    assert isinstance(plan.verdict, Ready)
    assert any("no store has state of the key now" in each for each in plan.findings)


@pytest.mark.parametrize(
    ("finished", "proven", "told"),
    [(True, True, "was erased before"), (True, False, "could not be proven"), (False, False, "was not completed")],
)
def test_a_second_erasure_tells_of_the_first(finished: bool, proven: bool, told: str) -> None:
    known = ErasureFacts("mark of alice", 1_790_000_000.0, finished, proven)
    plan = decide(REQUEST, world_of(TOPOLOGY, erased=(known,), mark="mark of alice"), TOPOLOGY)
    assert any(told in each for each in plan.findings)
    other = decide(REQUEST, world_of(TOPOLOGY, erased=(known,), mark="mark of bob"), TOPOLOGY)
    assert not any(told in each for each in other.findings)


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(RequestInvalid, match="key is empty"):
        Erase("orders", "")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"retention.ms": "1000", "segment.ms": "2000"}, "1970-01-01T00:00:13+00:00"),
        ({"cleanup.policy": "compact"}, "without a value"),
        ({"retention.ms": "-1"}, "never deleted by age"),
    ],
)
def test_the_expiry_of_messages_follows_the_topics_configuration(config: dict[str, str], told: str) -> None:
    assert told in expiry(TopicFacts("placed", "id", 1, 1, config), 10.0)


def test_a_certificate_with_an_unread_place_never_says_that_the_key_is_erased() -> None:
    gone = Proof("changelog", "orders-totals-changelog", "gone", "it was read", "2026-11-30T12:00:00+00:00")
    known = Certificate(processor="orders", mark="ab" * 32, begun_at="2026-11-30T12:00:00+00:00", proofs=(gone,))
    assert not known.proven, "it has no end yet"
    assert "not complete" in known.sentence
    whole = msgspec.structs.replace(known, finished_at="2026-11-30T12:01:00+00:00")
    assert whole.proven
    assert whole.sentence.startswith("Erased")
    unread = whole.with_proof(
        Proof("archives", "orders", "unknown", "it can't be searched", "2026-11-30T12:00:30+00:00")
    )
    assert not unread.proven
    assert unread.sentence.startswith("Not proven")
    assert "Erased" not in in_text(unread)
    assert decode(unread.encode()) == unread
    assert len(unread.with_proof(gone).proofs) == 2, "a proof of the same place replaces the former one"


@pytest.mark.parametrize("done", [0, 2, 3, 4])
def test_an_abandoned_erasure_sets_the_former_compaction_again(done: int) -> None:
    plan = decide(REQUEST, world_of(TOPOLOGY), TOPOLOGY)
    left = [plan.stages[at] for at in range(done, len(plan.stages)) if is_undone_at_the_end(plan, at)]
    assert {each.name for each in left if isinstance(each, SetTopicConfig)} == {
        "orders-totals-changelog",
        "orders-seen-changelog",
    }
    assert all(isinstance(each, SetTopicConfig) and each.config["segment.ms"] == "21600000" for each in left)
