"""One key is erased from a running processor, and each copy is proven gone by reading the broker and the disk."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.orchestration.cli import main
from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.checkpoints.manifest import folder_of
from holdfast.processors.lifecycle.plans.certificates import Certificate, decode
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Clear, Erase, Keys, Scale, Stop
from tests.parts.operated import SECOND_STREAM, Killed, Operated, killing_at_stages

KEY = "key-3"


@pytest.fixture
def standbys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task has a standby. A test requests it before ``operated``, whose settings are read once."""
    monkeypatch.setenv("HOLDFAST_STANDBY_REPLICAS", "1")


@pytest.fixture
def second_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor has a second stream. Its tasks have the same partitions, and other stores."""
    monkeypatch.setenv(SECOND_STREAM, "1")


def values_in_changelog(operated: Operated, key: str) -> int:
    """The number of records with a value that the changelog still has of a key, also of aborted transactions."""
    topics, head = operated.topics, key_prefix(key.encode())
    starts, ends = topics.start_offsets(operated.changelog), topics.end_offsets(operated.changelog, committed=False)
    return sum(
        record.value is not None and (record.key or b"").startswith(head)
        for number, end in ends.items()
        for record in read_range(topics.bootstrap, operated.changelog, number, starts[number], end, committed=False)
    )


def certificate_of(operated: Operated) -> Certificate:
    return decode(operated.verbs.registry.erasures.of(operated.group)[-1].document)


def erased_although_killed(operated: Operated, plan: Plan, tell: Callable[[str], None]) -> None:
    """Apply the plan, and resume the apply by its number after each kill: its record loses the key before its end."""
    number = None
    while True:
        try:
            if number is None:
                operated.verbs.apply(plan, confirmed=plan.hash, tell=tell)
            else:
                operated.verbs.resume(number, tell=tell)
            return
        except Killed:
            (record,) = operated.verbs.registry.journal.applies(1, processor=operated.group, open_only=True)
            number = record.id


def test_a_key_is_erased_although_the_apply_is_killed_at_each_stage(second_stream: None, operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=10, each=30)
    operated.feed(keys=10, each=1, topic=f"{operated.group}-second")
    operated.processed(310)
    operated.client.checkpoint()
    operated.do(Clear(operated.group, ("counts",), Keys((KEY,))))  # an export and a plan that name the key
    operated.feed(keys=10, each=30)
    operated.processed(610)
    before = operated.logged()
    assert values_in_changelog(operated, KEY) > 0

    plan = operated.verbs.plan(Erase(operated.group, KEY))
    assert KEY not in explain(plan)
    assert plan.hash == operated.verbs.plan(Erase(operated.group, KEY)).hash
    config = operated.topics.describe([operated.changelog])[operated.changelog].config
    struck: set[str] = set()
    erased_although_killed(operated, plan, killing_at_stages(struck))
    assert len(struck) == len(plan.stages), "it was killed at each stage, and resumed"

    certificate = certificate_of(operated)
    assert certificate.proven, certificate
    assert {(each.kind, each.outcome) for each in certificate.proofs} == {
        ("state", "gone"),
        ("changelog", "gone"),
        ("files", "gone"),
        ("checkpoints", "gone"),
        ("table", "absent"),
        ("exports", "gone"),
        ("archives", "absent"),
        ("registry", "gone"),
        ("messages", "stays"),
    }
    assert values_in_changelog(operated, KEY) == 0
    assert operated.logged() == {key: count for key, count in before.items() if key != KEY}
    after = operated.topics.describe([operated.changelog])[operated.changelog].config
    assert after == config, "compaction is configured as before"
    folder = Path(operated.settings.checkpoint_store) / folder_of(operated.group)
    manifests = list(folder.rglob("manifests/*.json"))
    assert len(manifests) == 4, "each task has one checkpoint, made after the deletes"
    exported = operated.settings.paths.exports(operated.group)
    assert [path.read_bytes() for path in exported.glob("*.jsonl")] == [b""]
    journal = operated.verbs.registry.journal
    assert not [each for each in journal.applies() if KEY in each.plan or any(KEY in note.text for note in each.done)]
    assert KEY not in json.dumps(certificate.encode())

    operated.feed(keys=10, each=1)
    operated.processed(620)
    assert operated.logged()[KEY] == 1, "a later message makes new state"
    again = operated.verbs.plan(Erase(operated.group, KEY))
    assert any("was erased before" in finding for finding in again.findings)


@pytest.mark.thorough
def test_an_unknown_key_is_erased_with_the_proof_that_no_place_had_it(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=4, each=5)
    operated.processed(20)
    before = operated.logged()
    plan = operated.verbs.plan(Erase(operated.group, "nobody"))
    assert any("no store has state of the key now" in finding for finding in plan.findings)
    operated.do(Erase(operated.group, "nobody"))
    certificate = certificate_of(operated)
    assert certificate.proven
    assert [each.outcome for each in certificate.proofs if each.kind in ("state", "exports")] == ["absent", "absent"]
    assert operated.logged() == before


@pytest.mark.thorough
def test_a_key_that_is_being_written_is_erased_up_to_one_offset_and_later_messages_stay(
    standbys: None, operated: Operated, capfd: pytest.CaptureFixture[str]
) -> None:
    operated.bring_up()
    operated.do(Scale(operated.group, 2, warm_s=0.0))
    operated.feed(keys=4, each=50)
    operated.processed(200)
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            operated.feed(keys=4, each=1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        operated.do(Erase(operated.group, KEY))
    finally:
        ended.set()
        writer.join()
    certificate = certificate_of(operated)
    assert certificate.proven, certificate
    (files,) = (each.how for each in certificate.proofs if each.kind == "files")
    assert "all entries of 4 copies were read" in files, "two tasks, and a standby of each"
    topics, head = operated.topics, key_prefix(KEY.encode())
    for number, end in certificate.ends[operated.changelog].items():
        start = topics.start_offsets(operated.changelog)[number]
        records = read_range(topics.bootstrap, operated.changelog, number, start, end, committed=False)
        assert not [each for each in records if each.value is not None and (each.key or b"").startswith(head)]
    operated.wait_for(lambda: operated.logged().get(KEY), "state of later messages")
    capfd.readouterr()
    assert main(["erased", operated.group, "--look"]) == 1
    assert "Later messages of the key made 1 entries" in capfd.readouterr().out


@pytest.mark.thorough
def test_a_stopped_processor_is_refused_and_the_named_command_makes_the_erasure_possible(operated: Operated) -> None:
    operated.bring_up()
    operated.do(Stop(operated.group))
    refused = operated.verbs.plan(Erase(operated.group, KEY)).verdict
    assert isinstance(refused, Refused)
    program, *words = shlex.split(refused.action.split("`")[1])
    assert program == "holdfast"
    assert main([*words, "--yes"]) == 0
    assert not isinstance(operated.verbs.plan(Erase(operated.group, KEY)).verdict, Refused)
