"""Plans that send dead letters again, decided only from given facts (what a command reads before it plans).

Also tests the contents of a dead letter.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from holdfast import Application, Count
from holdfast.infra.kafka.records import Record
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.dead_letters import LetterFacts, read_letter
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused, decode, encode
from holdfast.processors.lifecycle.plans.requests import Replay
from holdfast.processors.lifecycle.plans.stages import RemoveLetters, SendAgain
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import world_of

LETTERS = LetterFacts(
    "orders-dead", {0: 4}, {0: 11}, {"placed": 5}, kept=2, errors={"KeyError": 6, "TooLate": 1}, versions={"v0": 7}
)


def topology_of(dead: str | None = "orders-dead") -> Topology:
    application = Application(consumer_group="orders", dead_letter_topic=dead)
    application.dataframe(application.topic("placed"))
    return application.topology()


def plan_of(letters: LetterFacts | None, topology: Topology | None = None) -> Plan:
    known = topology or topology_of()
    facts = msgspec.structs.replace(world_of(known), letters=letters)
    made = decide(Replay("orders"), facts, known)
    assert decode(encode(made)).hash == made.hash
    return made


def test_letters_are_sent_to_their_inputs_and_only_then_deleted() -> None:
    plan = plan_of(LETTERS)
    assert isinstance(plan.verdict, Ready)
    send, remove = plan.stages
    assert isinstance(send, SendAgain)
    assert (send.topic, send.ends, send.inputs) == ("orders-dead", {0: 11}, ("placed",))
    assert "send 5 to placed" in send.says
    assert "write 2 letters that no input takes behind the others" in send.says
    assert isinstance(remove, RemoveLetters)
    assert remove.ends == send.ends
    assert plan.destructive
    assert plan.after_kill == "go on"
    said = explain(plan)
    assert "every reader of placed gets the messages again, not only orders" in said
    assert "6 letters with KeyError" in said
    assert "which is deployed" not in said


def test_a_plan_tells_that_the_deployed_version_is_the_one_that_failed() -> None:
    topology = topology_of()
    deployed = world_of(topology).deployed
    assert deployed is not None
    plan = plan_of(msgspec.structs.replace(LETTERS, versions={deployed: 3, "v0": 4}), topology)
    assert any(each.startswith(f"3 letters failed in version {deployed}, which is deployed") for each in plan.findings)
    assert any("the oldest 100,000" in each for each in plan_of(msgspec.structs.replace(LETTERS, more=True)).findings)


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        (None, "No letter is there."),
        (LetterFacts("orders-dead"), "No letter is there."),
        (msgspec.structs.replace(LETTERS, sent={}), "orders-dead has 2 dead letters that no input takes."),
    ],
)
def test_without_a_letter_that_an_input_takes_there_is_nothing_to_do(letters: LetterFacts | None, words: str) -> None:
    verdict = plan_of(letters).verdict
    assert isinstance(verdict, NothingToDo)
    assert verdict.sentence == words


def test_without_a_dead_letter_topic_the_plan_names_the_edit() -> None:
    verdict = plan_of(None, topology_of(None)).verdict
    assert isinstance(verdict, Refused)
    assert "Set `dead_letter_topic`" in verdict.action


def letter(**changes: bytes | None) -> Record:
    ours: dict[str, bytes | None] = {"kind": b"message", "topic": b"placed", "partition": b"3", "offset": b"17"}
    ours |= {"timestamp": b"1700000000000", "error.type": b"KeyError", "error": b"'speed'", **changes}
    headers = [("trace", b"t1"), *((f"holdfast.{name}", value) for name, value in ours.items() if value is not None)]
    return Record(b"k", b"{}", 40, 1_800_000_000_000, headers)


def test_a_letter_has_the_place_the_time_and_the_headers_of_its_message() -> None:
    found = read_letter(letter())
    assert (found.topic, found.partition, found.offset, found.timestamp_ms) == ("placed", 3, 17, 1_700_000_000_000)
    assert found.headers == [("trace", b"t1")]
    assert (found.error, found.reason) == ("KeyError", "'speed'")
    assert found.goes_to(["placed"])


@pytest.mark.parametrize(
    "record",
    [
        letter(kind=b"timer"),
        letter(kind=b"result"),
        letter(kind=None),
        letter(topic=b"orders-region-repartition"),
        letter(partition=b"-1"),
        letter(partition=None),
        replace(letter(), headers=None),
    ],
)
def test_what_is_no_message_of_an_input_is_kept(record: Record) -> None:
    assert not read_letter(record).goes_to(["placed"])


def test_the_inputs_are_those_that_others_write() -> None:
    application = Application(consumer_group="orders", dead_letter_topic="orders-dead")
    application.dataframe(application.topic("placed")).group_by("region").aggregate(n=Count()).to_topic(
        application.topic("counts")
    )
    topology = application.topology()
    assert len(topology.inputs) == 2
    (send, _) = plan_of(LETTERS, topology).stages
    assert isinstance(send, SendAgain)
    assert send.inputs == ("placed",)
