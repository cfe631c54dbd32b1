"""A new version is proved in memory on the last messages: failures with offsets, and state of the messages' keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from holdfast import Application, Count, InMemoryCluster, State
from holdfast.processors.engine.changelog.format import META_KEY, encode_value, full_keys
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.proof import refusal as proofs
from holdfast.processors.proof.documents import Failure, Material, Message, Outcome
from holdfast.processors.proof.run import prove


def application(
    fails_at: int | None = None,
    *,
    dead_letters: str | None = None,
    state_dir: Path | None = None,
    reset: Literal["earliest", "latest"] = "latest",
) -> Application:
    app = Application(
        consumer_group="bank", auto_offset_reset=reset, dead_letter_topic=dead_letters, state_dir=state_dir
    )

    def add(value: dict[str, int], state: State) -> dict[str, int]:
        if value["amount"] == fails_at:
            raise ValueError("no such amount")
        total = state.get("total", default=0) + value["amount"]
        state.set("total", total)
        return {"total": total}

    app.dataframe(app.topic("orders")).apply(add, stateful=True, store="totals").to_topic(app.topic("sums"))
    return app


def material(amounts: list[Any], *, state: dict[bytes, int] | None = None, first: int = 1_000) -> Material:
    messages = tuple(
        Message(first + 2 * number, b"ann", json.dumps({"amount": amount}).encode(), 0)
        for number, amount in enumerate(amounts)
    )
    pairs = tuple((full_keys([key], b"total")[0], encode_value(total, 0)) for key, total in (state or {}).items())
    return Material("bank", {"orders": 2}, {"orders": {1: messages}}, {"totals": {1: pairs}})


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_version_that_works_processes_all_from_the_state_of_the_keys(reset: Literal["earliest", "latest"]) -> None:
    outcome = prove(application(reset=reset), material([1, 2, 3], state={b"ann": 10}))
    assert outcome == Outcome(processed=3, sent={"sums": 3})


@pytest.mark.parametrize("dead_letters", [None, "bank-dead"])
def test_each_message_that_fails_has_its_real_place(dead_letters: str | None) -> None:
    outcome = prove(application(fails_at=7, dead_letters=dead_letters), material([1, 7, 2, 7]))
    assert outcome.failures == tuple(
        Failure("orders", 1, offset, "ValueError", "no such amount") for offset in (1_002, 1_006)
    )
    assert outcome.broken == ""


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("partitions", [None, 3])
def test_messages_behind_a_group_by_are_processed_too(
    partitions: int | None, reset: Literal["earliest", "latest"]
) -> None:
    app = Application(consumer_group="bank", auto_offset_reset=reset)
    grouped = app.dataframe(app.topic("orders")).group_by("amount", partitions=partitions)
    grouped.aggregate(n=Count()).to_topic(app.topic("counts"))
    assert prove(app, material([1, 2, 2])) == Outcome(processed=3, sent={"counts": 3})


@pytest.mark.parametrize("dead_letters", [None, "bank-dead"])
def test_a_failure_behind_a_group_by_has_the_place_of_the_message_that_it_came_of(dead_letters: str | None) -> None:
    def refuse(value: dict[str, int], state: State) -> dict[str, int]:
        if value["amount"] == 7:
            raise ValueError("no such amount")
        state.set("n", state.get("n", default=0) + 1)
        return value

    app = Application(consumer_group="bank", dead_letter_topic=dead_letters)
    grouped = app.dataframe(app.topic("orders")).group_by("amount")
    grouped.apply(refuse, stateful=True, store="totals").to_topic(app.topic("sums"))
    outcome = prove(app, material([1, 7, 2, 3, 7, 4]))
    assert outcome.broken == ""
    assert [each.place for each in outcome.failures] == [("orders", 1, 1_002), ("orders", 1, 1_008)]
    assert outcome.failures[0].text == "no such amount (behind `group_by` or a join)"
    assert (outcome.processed, outcome.sent) == (4, {"sums": 4})


def test_drop_duplicates_begins_without_memory_because_it_has_seen_all_these_messages() -> None:
    def declare() -> Application:
        app = Application(consumer_group="bank", auto_offset_reset="earliest")
        frame = app.dataframe(app.topic("orders")).drop_duplicates("amount", within=3_600_000)
        frame.to_topic(app.topic("sums"))
        return app

    given, cluster, app = material([1, 2, 3]), InMemoryCluster(), declare()
    cluster.create_topic("orders", 2)
    for message in given.messages["orders"][1]:
        cluster.produce("orders", message.value, message.key, partition=1)
    cluster.run(app)
    ((store,),) = ([spec.name for spec in app.topology().stores],)
    records = [(each.key, each.value) for _, each in cluster.read(changelog_topic("bank", store))]
    pairs = tuple((key, value) for key, value in records if key != META_KEY)
    assert len(pairs) >= 3
    after = msgspec.structs.replace(given, state={store: {1: pairs}})
    outcome = prove(declare(), after)
    assert (outcome.sent, outcome.unreached) == ({"sums": 3}, ())


def test_steps_that_no_message_reaches_are_named_and_those_behind_them_are_not() -> None:
    def is_new(value: dict[str, int], state: State) -> bool:
        return not state.get("total", default=0)

    app = Application(consumer_group="bank")
    frame = app.dataframe(app.topic("orders")).filter(is_new, stateful=True, store="totals")
    frame.apply(lambda value: value["lost"]).apply(str).to_topic(app.topic("sums"))
    frame.to_topic(app.topic("copies"))
    outcome = prove(app, material([1, 2], state={b"ann": 3}))
    assert outcome.failures == ()
    assert outcome.sent == {"sums": 0, "copies": 0}
    (lost, copies) = outcome.unreached
    assert lost.startswith("`apply(<lambda>)` (test_proof.py, line ")
    assert copies == "`to_topic(copies)`"
    said = proofs.words("v2", "v1", outcome, Outcome(2, {"sums": 2, "copies": 0}))
    assert said.startswith("proven in part: no message reached `apply(<lambda>)` (")
    assert "; version v1 sent 2 outputs to sums for these messages, v2 none; version v2 processed 2 messages" in said
    assert not proofs.judge_proven([said])[0]


def test_what_state_a_proof_lacks_is_named() -> None:
    app = Application(consumer_group="bank", use_changelog_topics=False)
    app.dataframe(app.topic("orders")).apply(keep, stateful=True, store="totals").to_topic(app.topic("sums"))
    app.dataframe(app.topic("refunds")).to_topic(app.topic("sums"))
    outcome = prove(app, msgspec.structs.replace(material([1, 2]), partitions={"orders": 2, "refunds": 2}))
    assert outcome.gaps == (
        "store `totals` began empty, as it has no changelog",
        "no committed message of topic refunds was left",
    )


def keep(value: dict[str, int], state: State) -> dict[str, int]:
    state.set("total", value["amount"])
    return value


def test_an_output_that_its_serializer_refuses_is_a_failure() -> None:
    app = Application(consumer_group="bank")
    app.dataframe(app.topic("orders")).apply(lambda value: {"at": object()}).to_topic(app.topic("sums"))
    (failure,) = prove(app, material([1])).failures
    assert (failure.topic, failure.partition, failure.offset) == ("orders", 1, 1_000)


def test_the_state_folder_of_the_worker_is_not_touched(tmp_path: Path) -> None:
    prove(application(state_dir=tmp_path / "state"), material([1]))
    assert not (tmp_path / "state").exists()


FAILED = Failure("orders", 1, 1_002, "ValueError", "no such amount")


def test_a_failure_that_the_running_version_has_too_says_nothing() -> None:
    new = Outcome(3, {"sums": 3}, (FAILED,))
    assert proofs.refusal("bank", "v2", "v1", new, Outcome(3, {"sums": 3}, (FAILED,))) is None
    said = proofs.words("v2", "v1", new, Outcome(3, {"sums": 3}, (FAILED,)))
    assert said.endswith("1 message failed in both versions")
    refused = proofs.refusal("bank", "v2", "v1", new, Outcome(4, {"sums": 4}))
    assert refused is not None
    assert "orders[1] offset 1002 raised ValueError: no such amount." in refused.message
    assert "Version v1 keeps running" in refused.message
    assert (refused.fields["topic"], refused.fields["partition"], refused.fields["offset"]) == ("orders", 1, 1_002)


def test_a_version_that_cannot_run_is_refused_unless_the_running_one_cannot_either() -> None:
    broken = Outcome(broken="ended with ImportError: no module")
    refused = proofs.refusal("bank", "v2", "v1", broken, Outcome(1, {"sums": 1}))
    assert refused is not None
    assert "ImportError: no module." in refused.message
    assert proofs.refusal("bank", "v2", "v1", broken, broken) is None
    said = proofs.words("v2", "v1", broken, broken)
    assert said == "not proven: both versions failed on the last messages; v2 ended with ImportError: no module"


def test_the_check_says_what_was_proven() -> None:
    assert proofs.judge_proven([])[0]
    assert proofs.judge_proven([proofs.words("v2", "v1", Outcome(3, {"sums": 2, "more": 1}), None)]) == (
        True,
        "Version v2 processed 3 messages, outputs: more 1, sums 2; none failed.",
    )
    lacking = proofs.words("v2", "v1", Outcome(3, {"sums": 2}, gaps=("no worker had the state of orders[1]",)), None)
    assert lacking.startswith("proven in part: no worker had the state of orders[1]; version v2 processed")
    assert proofs.judge_proven(None) == (False, "Not proven: no deploy of the version that runs is recorded.")
    assert proofs.judge_proven([f"{proofs.NOT_PROVEN}no input"]) == (False, "Not proven: no input.")


def test_the_version_does_not_change_with_prove() -> None:
    assert application().topology().prove
    app = Application(consumer_group="bank", prove=False)
    app.dataframe(app.topic("orders"))
    same = Application(consumer_group="bank")
    same.dataframe(same.topic("orders"))
    assert not app.topology().prove
    assert app.topology().code_version == same.topology().code_version


def test_the_cluster_in_memory_is_another_one_each_time() -> None:
    cluster = InMemoryCluster()
    prove(application(), material([1]))
    with pytest.raises(LookupError):
        cluster.read("sums")


def test_a_partition_of_a_task_with_state_that_no_worker_has_is_told() -> None:
    manifests = [{"tasks": [{"partition": 0, "inputs": {"orders": 7}}]}, {"tasks": []}]
    assert proofs.unowned({"orders": (0, 1), "plain": (0, 1)}, manifests) == ("no worker had the state of orders[1]",)
    assert proofs.unowned({"orders": (0,)}, manifests) == ()
