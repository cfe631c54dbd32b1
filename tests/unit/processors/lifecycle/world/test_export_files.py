"""Export files are read back byte for byte. A plan puts their keys and values back into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.processors.engine.changelog.format import encode_bytes, encode_value, key_prefix
from holdfast.processors.engine.state.exports import ExportFile, ExportUnreadable, entries_in, entry_of
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.facts import DeploymentFacts, InstanceFacts
from holdfast.processors.lifecycle.plans.facts.files import KEYS_NAMED_MAX, FileFacts, FileStore
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused, decode, encode
from holdfast.processors.lifecycle.plans.requests import Backfill, Everything, Keys, RequestInvalid, Restore
from holdfast.processors.lifecycle.plans.stages import AdoptTable, LoadFile
from holdfast.processors.lifecycle.verbs.table import decide
from holdfast.processors.lifecycle.world.export_files import file_facts
from tests.unit.processors.lifecycle.worlds import orders_topology, stopped, world_of

TOPOLOGY = orders_topology()
ENTRIES = [
    (key_prefix(b"alice") + b"n", encode_value({"a": [1.0, None, "\u00e4"]}, 1234)),
    (key_prefix(b"alice") + "\u00e4".encode(), encode_value(0, 5)),
    (key_prefix(b"\xff") + b"raw", encode_bytes(b"\x00\xff", -1)),
    (key_prefix(b"") + b"", encode_value(None, 0)),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = ExportFile(tmp_path, "totals", 1_700_000_000.0)
    made.write("totals", 1, ENTRIES)
    made.write("seen", 0, ENTRIES[:1])
    made.finish()
    return made.path


def test_an_exported_file_is_read_back_byte_for_byte(file: Path) -> None:
    found = list(entries_in(str(file), "totals"))
    assert [(each.key, each.stored) for each in found] == ENTRIES
    assert [each.message_key for each in found] == [b"alice", b"alice", b"\xff", b""]
    assert {(each.store, each.partition) for each in found} == {("totals", 1)}


def test_the_facts_of_a_file_count_keys_and_entries_by_store(file: Path) -> None:
    facts = file_facts(str(file))
    assert facts.problem == ""
    assert facts.stores["seen"] == FileStore(1, 1, len(ENTRIES[0][1]), (0,), ("alice",))
    assert (facts.stores["totals"].keys, facts.stores["totals"].entries) == (3, 4)
    assert facts.stores["totals"].named == (), "one key is no text"


def test_many_keys_are_counted_and_not_named(tmp_path: Path) -> None:
    made = ExportFile(tmp_path, "totals", 0.0)
    made.write("totals", 0, [(key_prefix(b"%d" % n) + b"n", encode_value(n, 0)) for n in range(KEYS_NAMED_MAX + 1)])
    made.finish()
    found = file_facts(str(made.path)).stores["totals"]
    assert (found.keys, found.named) == (KEYS_NAMED_MAX + 1, ())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"store": "s"}',
        b'{"store": "s", "partition": 0, "state": "", "timestamp_ms": 0, "key": "k"}',
        b'{"store": "s", "partition": 0, "state": "", "timestamp_ms": 0, "value": 1}',
        b'{"store": "s", "partition": -1, "state": "", "timestamp_ms": 0, "key": "k", "value": 1}',
        b'{"store": "s", "partition": 0, "state": "", "timestamp_ms": 0, "key": "", "value": 1, "value_base64": ""}',
        b'{"store": "s", "partition": 0, "state": "", "timestamp_ms": 1e30, "key": "k", "value": 1}',
        b'{"store": "s", "partition": 0, "state": "", "timestamp_ms": 99999999999999999999, "key": "k", "value": 1}',
        b'{"store": "s", "partition": 0, "state": "", "timestamp_ms": 0, "key": "k", "value": 1, "more": 1}',
    ],
)
def test_other_lines_are_named_by_their_number(line: bytes) -> None:
    with pytest.raises(ExportUnreadable, match="Line 7 is no entry"):
        entry_of(line, 7)


def test_a_file_that_cannot_be_used_has_a_problem(tmp_path: Path) -> None:
    assert "can't be read" in file_facts(str(tmp_path / "nothing")).problem
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert "has no entries" in file_facts(str(empty)).problem
    empty.write_text("{}\n")
    assert "Line 1 is no entry" in file_facts(str(empty)).problem


def facts_in(**stores: FileStore) -> FileFacts:
    return FileFacts("/exports/a.jsonl", "abcd", stores)


SOME = FileStore(2, 3, 60, (0, 1), ("a", "b"))


def plan_of(request: Restore, file: FileFacts, **changes: Any) -> Plan:
    made = decide(request, world_of(TOPOLOGY, file=file, **changes), TOPOLOGY)
    assert decode(encode(made)) == made
    return made


def refusal(plan: Plan) -> str:
    assert isinstance(plan.verdict, Refused)
    return plan.verdict.sentence


ASKED = Restore("orders", file="/exports/a.jsonl")


def test_entries_are_loaded_beside_and_adopted_without_touching_other_keys() -> None:
    plan = plan_of(ASKED, facts_in(totals=SOME))
    assert isinstance(plan.verdict, Ready)
    assert [type(each).__name__ for each in plan.stages] == [
        *("RemoveLoaded", "LoadFile", "PauseProcessor"),
        *("AdoptTable", "ResumeProcessor", "RemoveLoaded"),
    ]
    (load,) = (each for each in plan.stages if isinstance(each, LoadFile))
    assert (load.store, load.sha256) == ("totals", "abcd")
    (adopt,) = (each for each in plan.stages if isinstance(each, AdoptTable))
    assert adopt.keep_others
    assert adopt.export == Keys(("a", "b"))
    assert plan.destructive
    assert plan.after_kill == "go on"
    assert "put 2 keys of totals back" in explain(plan)
    assert "3 entries" in explain(plan)


def test_after_a_rollback_the_running_owners_put_a_file_back() -> None:
    older = DeploymentFacts("older", ("0",), "deployed", 3)
    runs = {"deployment": older, "instances": (InstanceFacts("0", True, "running", "older"),)}
    assert isinstance(plan_of(ASKED, facts_in(totals=SOME), **runs).verdict, Ready)
    rebuilt = decide(Backfill("orders", "totals", "topic"), world_of(TOPOLOGY, **runs), TOPOLOGY)
    assert "version older is deployed" in refusal(rebuilt), "a shadow would run the code of now"


def test_all_keys_are_exported_first_when_the_file_has_too_many_to_name() -> None:
    plan = plan_of(ASKED, facts_in(totals=FileStore(9_999, 9_999, 60, (0,))))
    (adopt,) = (each for each in plan.stages if isinstance(each, AdoptTable))
    assert adopt.export == Everything()


def test_stores_of_the_file_can_be_chosen() -> None:
    file = facts_in(totals=SOME, seen=SOME)
    plan = plan_of(Restore("orders", stores=("seen",), file="/exports/a.jsonl"), file)
    assert {each.store for each in plan.stages if isinstance(each, LoadFile)} == {"seen"}
    assert "has no entries of more" in refusal(plan_of(Restore("orders", stores=("more",), file="/f"), file))


def test_a_changed_file_is_another_plan() -> None:
    changed = msgspec.structs.replace(facts_in(totals=SOME), sha256="ffff")
    assert plan_of(ASKED, facts_in(totals=SOME)).hash != plan_of(ASKED, changed).hash


def test_a_file_that_does_not_fit_is_refused() -> None:
    assert "gone" in refusal(plan_of(ASKED, FileFacts("/f", problem="It is gone.", action="Find it.")))
    assert "has no store 'other'" in refusal(plan_of(ASKED, facts_in(other=SOME)))
    wide = FileStore(1, 1, 1, (0, 7), ("a",))
    assert "has no partition 7" in refusal(plan_of(ASKED, facts_in(totals=wide)))
    down = decide(ASKED, msgspec.structs.replace(stopped(TOPOLOGY), file=facts_in(totals=SOME)), TOPOLOGY)
    assert "does not run in all slots" in refusal(down)


@pytest.mark.parametrize("more", [{"at": "latest"}, {"partitions": (1,)}, {"source": "changelog"}, {"inputs": "stay"}])
def test_a_restore_from_a_file_does_nothing_else(more: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalid, match="restores nothing else"):
        Restore("orders", file="/f", **more)
