"""The verbs (operator commands) on a real processor have the effects that `explain` has shown.

Deleted state does not come back.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast.infra.database.applies import ApplyJournal
from holdfast.infra.database.records import StageNote
from holdfast.infra.kafka.inspection.hanging_transactions import MAX_TIMEOUT_S, SLACK_S
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.orchestration.commands.reports.status import describe
from holdfast.orchestration.verbs import open_verbs
from holdfast.processors.application.registration import ProcessorUnknown
from holdfast.processors.lifecycle.plans.apply import ApplyInProgress, NotConfirmed, PlanRefused, PlanStale
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Refused
from holdfast.processors.lifecycle.plans.requests import (
    Backfill,
    Clear,
    Compact,
    Deploy,
    Everything,
    Keys,
    Prefix,
    Provision,
    Restore,
    Stop,
)
from tests.kafka.hanging import leave_hanging, unverified
from tests.parts.operated import PARTITIONS, Killed, Operated, exported_by

PROJECT = Path(__file__).resolve().parents[3]
ALL_THREE = {f"key-{number}": 4 for number in range(3)}


def test_keys_are_cleared_while_it_runs_and_stay_cleared_through_a_cold_restore(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=30, each=2)
    operated.processed(60)
    request = Clear(operated.group, ("counts",), Keys(("key-1", "key-2", "nobody")))
    plan = operated.verbs.plan(request)
    assert plan.keys == 2
    with pytest.raises(NotConfirmed):
        operated.verbs.apply(plan)
    done = operated.verbs.apply(plan, confirmed=plan.hash)
    exported = exported_by(done.notes[0].text)
    assert {json.loads(line)["key"] for line in exported.read_text().splitlines()} == {"key-1", "key-2"}
    left = {f"key-{number}": 2 for number in range(30) if number not in (1, 2)}
    assert operated.logged() == left
    assert isinstance(operated.verbs.plan(request).verdict, NothingToDo)

    restored = operated.do(Restore(operated.group, source="changelog"))
    assert [note.stage for note in restored.notes] == [
        "stop_processor",
        "set_state_aside",
        "run_processor",
        "delete_state_aside",
    ]
    assert not list(operated.settings.paths.state.rglob("*aside*"))
    assert operated.client.count("counts", all=True)["keys"] == 28
    operated.feed(keys=3, each=2)
    operated.processed(66)
    assert operated.logged() == {**left, "key-0": 4, "key-1": 2, "key-2": 2}


@pytest.mark.thorough
def test_everything_is_cleared_and_built_anew_from_the_beginning_without_double_counting(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=4)
    operated.processed(12)
    request = Clear(operated.group, selection=Everything(), rewind="earliest")
    refused = operated.verbs.plan(request)
    assert isinstance(refused.verdict, Refused)
    assert "live member" in refused.verdict.sentence
    with pytest.raises(PlanRefused):
        operated.verbs.apply(refused, sure=True)
    assert operated.logged() == ALL_THREE

    operated.do(Stop(operated.group))
    shown = operated.verbs.plan(request)
    assert shown.keys == 3
    with pytest.raises(PlanStale, match="was not shown"):
        operated.verbs.apply(shown, confirmed="000000000000")
    operated.verbs.apply(shown, confirmed=shown.hash)
    assert operated.logged() == {}
    assert operated.client.status() is None
    assert set(operated.topics.committed_offsets(operated.group).values()) == {0}

    operated.do(Deploy(operated.group))
    operated.processed(12)
    assert operated.logged() == ALL_THREE
    assert operated.verbs.audit(operated.group, ())[0].differences == ()


@pytest.mark.thorough
def test_a_clear_whose_run_is_killed_before_it_records_it_keeps_what_was_counted_since(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=4)
    operated.processed(12)
    plan = operated.verbs.plan(Clear(operated.group, selection=Keys(("key-1",))))
    noted = ApplyJournal.note_stage

    def killed(journal: ApplyJournal, apply_id: int, token: int, note: StageNote, now: datetime) -> bool:
        if note.stage == "clear_keys":
            raise Killed("after the effect")
        return noted(journal, apply_id, token, note, now)

    with monkeypatch.context() as patch:
        patch.setattr(ApplyJournal, "note_stage", killed)
        with pytest.raises(Killed):
            operated.verbs.apply(plan, confirmed=plan.hash)
    operated.feed(keys=3, each=2)
    operated.processed(18)
    record = operated.verbs.begun(plan.request)
    assert record is not None
    done = operated.verbs.resume(record.id)
    said = done.notes[-1].text
    assert said.startswith("0 keys deleted")
    undo = exported_by(said)  # this file of the killed run contains the keys that the run deleted
    assert '"key-1"' in undo.read_text()
    assert operated.logged() == {"key-0": 6, "key-1": 2, "key-2": 6}
    again = operated.do(plan.request)  # a second apply (not a resume) of the request clears again
    assert operated.logged() == {"key-0": 6, "key-2": 6}, again.text


@pytest.mark.thorough
def test_an_apply_that_was_killed_is_gone_on_with_by_the_same_words(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=4)
    operated.processed(12)
    operated.do(Stop(operated.group))
    words = ["clear", operated.group, "--all", "--yes"]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.orchestration.cli", "apply", *words],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": f"{PROJECT}:{os.environ['PYTHONPATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    operated.wait_for(lambda: operated.client.status() is not None or process.poll() is not None, "the paused worker")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (record,) = (each for each in operated.verbs.applies(operated.group) if each.finished_at is None)
    assert len(record.done) < 4
    told = describe(operated.settings)
    assert [(each["id"], each["state"]) for each in told["applies"]] == [(record.id, "broken off")]
    assert [(each["processor"], each["paused"]) for each in told["processors"]] == [(operated.group, True)]
    with pytest.raises(ApplyInProgress, match="was broken off"):
        operated.do(Restore(operated.group))
    begun = operated.verbs.begun(Clear(operated.group))
    assert begun is not None
    assert begun.id == record.id
    done = operated.verbs.resume(begun.id)
    assert [note.stage for note in done.notes] == ["run_processor", "clear_keys", "stop_processor"]
    assert operated.logged() == {}
    assert operated.client.status() is None


@pytest.mark.thorough
def test_a_clear_that_is_abandoned_leaves_a_stopped_processor_stopped(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=2)
    operated.processed(6)
    operated.do(Stop(operated.group))
    record = operated.killed_while_paused(Clear(operated.group), stage=2)
    told: list[str] = []
    operated.verbs.abandon(record.id, reason="not needed", tell=told.append)
    assert operated.client.status() is None
    assert any("it was stopped before: slot 0 stopped" in text for text in told)
    deployment = operated.verbs.registry.deployment(operated.group)
    assert deployment is not None
    assert deployment.desired == "stopped"
    operated.do(Deploy(operated.group))
    assert operated.logged() == {f"key-{number}": 2 for number in range(3)}


@pytest.mark.thorough
def test_the_command_line_says_what_the_plan_says(operated: Operated) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.orchestration.cli", *words],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": f"{PROJECT}:{os.environ['PYTHONPATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout

    group = operated.group
    code, said = run("status", "--json")
    assert [(each["processor"], each["diagnosis"]) for each in json.loads(said)["processors"]] == [
        (group, "not-deployed")
    ]
    code, said = run("plan", "provision", group, "--json")
    document = json.loads(said)
    assert (code, document["changes"], document["destructive"]) == (2, True, False)
    code, said = run("apply", "provision", group, "--plan", document["hash"], "--json")
    assert (code, json.loads(said)["plan"]) == (0, document["hash"])
    code, said = run("explain", "provision", group)
    assert (code, "nothing to do" in said) == (0, True)
    code, said = run("plan", "clear", group, "--store", "count", "--all")
    assert (code, "Did you mean counts?" in said) == (3, True)
    code, said = run("plan", "clear", group, "--store", "counts")
    assert (code, "given in 0 ways" in said) == (64, True)
    code, said = run("plan", "stop", "nobody")
    assert (code, "There is no processor named 'nobody'" in said) == (64, True)
    code, said = run("apply", "resume", "999")
    assert (code, "Apply 999 does not exist" in said) == (64, True)
    code, said = run("logs", group)
    assert (code, "has no log for slot" in said) == (64, True)


def test_a_processor_that_is_not_defined_is_named(operated: Operated) -> None:
    with pytest.raises(ProcessorUnknown, match="There is no processor named 'nobody'"):
        operated.verbs.plan(Clear("nobody", (), Prefix("a")))


def test_provisioning_twice_and_compacting_and_deploying_twice_change_nothing(operated: Operated) -> None:
    operated.bring_up()
    status = operated.client.status()
    assert status is not None
    for request in (Provision(operated.group), Deploy(operated.group)):
        assert isinstance(operated.verbs.plan(request).verdict, NothingToDo)
    operated.feed(keys=3, each=4)
    operated.processed(12)
    done = operated.do(Compact(operated.group))
    assert "stores rewritten" in done.text
    again = operated.client.status()
    assert again is not None
    assert again.pid == status.pid
    assert operated.logged() == ALL_THREE


def test_a_transaction_that_hangs_on_a_changelog_is_found_and_ended(operated: Operated) -> None:
    operated.do(Provision(operated.group))
    with unverified(operated.topics.bootstrap):
        age_s = MAX_TIMEOUT_S + SLACK_S + 60
        leave_hanging(operated.topics.bootstrap, operated.changelog, 1, producer_id=777_003, age_s=age_s)
    request = Compact(operated.group)
    plan = operated.verbs.plan(request)
    assert [type(stage).__name__ for stage in plan.stages] == ["AbortTransaction"]
    assert f"{operated.changelog}[1]" in plan.stages[0].says
    done = operated.verbs.apply(plan, confirmed=plan.hash)
    assert done.notes[0].text.endswith("aborted")
    assert operated.topics.settled_end_offsets(operated.changelog, 60, upto={1: 2})[1] == 2
    assert isinstance(operated.verbs.plan(request).verdict, Refused)


def cut(operated: Operated) -> None:
    """Make Kafka delete all records of the changelog, by a changed cleanup policy that is repaired at once."""
    ends = operated.topics.settled_end_offsets(operated.changelog)
    cuts = [TopicPartition(operated.changelog, number, end) for number, end in ends.items() if end]
    # Kafka refuses to delete records of a topic whose cleanup policy is only `compact`.
    operated.topics.alter(operated.changelog, {"cleanup.policy": "compact,delete"})
    admin = AdminClient({"bootstrap.servers": operated.topics.bootstrap})
    for future in admin.delete_records(cuts).values():
        future.result(30)
    operated.topics.alter(operated.changelog, {"cleanup.policy": "compact"})


@pytest.mark.thorough
def test_a_changelog_that_lost_its_beginning_is_filled_from_the_worker_that_works_and_restores_cold(
    operated: Operated,
) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=4)
    operated.processed(12)
    cut(operated)
    refused = operated.verbs.plan(Restore(operated.group, source="changelog"))
    assert isinstance(refused.verdict, Refused)
    assert "--from local" in refused.verdict.action
    request = Backfill(operated.group, "counts", "local")
    plan = operated.verbs.plan(request)
    assert [type(stage).__name__ for stage in plan.stages] == [
        "StopProcessor",
        "CheckLocalState",
        "DeleteTopic",
        "CreateTopic",
        "RunProcessor",
        "RunProcessor",
    ]
    operated.verbs.apply(plan, confirmed=plan.hash)
    assert operated.logged() == ALL_THREE
    assert not any(operated.topics.start_offsets(operated.changelog).values())
    operated.do(Restore(operated.group, source="changelog"))
    operated.feed(keys=3, each=1)
    operated.processed(15)
    assert operated.logged() == {key: count + 1 for key, count in ALL_THREE.items()}


def widen(operated: Operated) -> None:
    """Add a partition to the changelog, so that it has one more than its source."""
    wider = [NewPartitions(operated.changelog, PARTITIONS + 1)]
    admin = AdminClient({"bootstrap.servers": operated.topics.bootstrap})
    for future in admin.create_partitions(wider).values():
        future.result(30)
    operated.wait_for(lambda: len(operated.topics.start_offsets(operated.changelog)) > PARTITIONS, "the partition")


def lose(operated: Operated) -> None:
    """Delete the changelog topic of the processor's store."""
    operated.topics.delete(operated.changelog)


@pytest.mark.thorough
def test_a_changelog_that_is_too_wide_is_filled_from_local_state_and_no_output_comes_again(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=4)
    operated.processed(12)
    operated.do(Stop(operated.group))
    widen(operated)
    for request in (Deploy(operated.group), Provision(operated.group)):
        refused = operated.verbs.plan(request)
        assert isinstance(refused.verdict, Refused)
        assert f"`holdfast apply backfill {operated.group} --store counts --from local`" in refused.verdict.action
    operated.do(Backfill(operated.group, "counts", "local"))
    assert operated.logged() == ALL_THREE
    operated.do(Deploy(operated.group))
    sink, bootstrap = f"{operated.group}-out", operated.topics.bootstrap
    ends = operated.topics.settled_end_offsets(sink).items()
    assert sum(1 for number, end in ends for _ in read_range(bootstrap, sink, number, 0, end)) == 12
    assert operated.client.count("counts", all=True)["keys"] == 3


@pytest.mark.thorough
@pytest.mark.parametrize("spoil", [cut, widen, lose])
def test_where_changelog_and_local_state_are_lost_all_is_built_anew(
    operated: Operated, spoil: Callable[[Operated], None]
) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=4)
    operated.processed(12)
    operated.do(Stop(operated.group))
    spoil(operated)
    shutil.rmtree(operated.settings.paths.state)
    refused = operated.verbs.plan(Backfill(operated.group, "counts", "local"))
    assert isinstance(refused.verdict, Refused)
    assert f"`holdfast apply clear {operated.group} --all --rewind earliest`" in refused.verdict.action
    operated.do(Clear(operated.group, rewind="earliest"))
    operated.do(Deploy(operated.group))
    operated.processed(12)
    operated.wait_for(lambda: operated.logged() == ALL_THREE, "everything counted anew")
    operated.do(Restore(operated.group, source="changelog"))
    assert operated.client.count("counts", all=True)["keys"] == 3


@pytest.mark.thorough
def test_looking_at_state_is_in_nobodys_way(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=30, each=4)
    operated.processed(120)
    done = threading.Event()
    looked: list[Exception | None] = []

    def look() -> None:
        with open_verbs(operated.settings, who="a looker") as verbs:
            while not done.is_set():
                try:
                    verbs.plan(Clear(operated.group))
                    looked.append(None)
                except Exception as failure:
                    looked.append(failure)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(3):
            operated.do(Restore(operated.group, source="changelog"))
    finally:
        done.set()
        thread.join()
    assert looked
    assert set(looked) == {None}
