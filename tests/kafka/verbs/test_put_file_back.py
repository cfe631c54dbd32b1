"""The keys and values that a clear exported to a file can be put back from this file."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from holdfast.orchestration.cli import main
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Clear, Keys, Restore
from holdfast.processors.lifecycle.rebuild.from_files import FileUnfit
from tests.parts.operated import Operated, killing_at_stages


def cleared(operated: Operated, *keys: str) -> Path:
    """Clear these keys. Returns the file with their former values."""
    return Path(undo_of(operated, *keys)[-2])


def undo_of(operated: Operated, *keys: str) -> list[str]:
    """Clear these keys. Returns the words of the undo command that the result prints."""
    done = operated.do(Clear(operated.group, ("counts",), Keys(keys)))
    _, _, command = done.notes[0].text.partition(". Undo: ")
    assert command.startswith("`")
    assert command.endswith("`")
    return shlex.split(command[1:-1])


@pytest.mark.thorough
def test_a_clear_of_all_partitions_is_undone_by_exactly_the_command_that_it_prints(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=20, each=3)
    operated.processed(60)
    before = operated.logged()
    program, *words = undo_of(operated, *(f"key-{number}" for number in range(20)))
    assert program == "holdfast"
    exports = Path(words[-2]).parent
    assert len(list(exports.iterdir())) == 1, "one file, whatever the number of partitions and workers"
    assert operated.logged() == {}
    assert main(words) == 0
    assert operated.logged() == before


def test_cleared_keys_are_put_back_and_no_other_key_changes(
    operated: Operated, capfd: pytest.CaptureFixture[str]
) -> None:
    operated.bring_up()
    operated.feed(keys=20, each=3)
    operated.processed(60)
    before = operated.logged()
    file = cleared(operated, "key-1", "key-2", "key-3")
    operated.feed(keys=2, each=1)  # key-1 starts from zero, key-0 continues its count
    operated.processed(62)
    assert operated.logged()["key-1"] == 1

    request = Restore(operated.group, file=str(file))
    plan = operated.verbs.plan(request)
    assert plan.destructive
    assert (plan.keys, plan.verdict.sentence) == (3, f"put 3 keys of counts back from {file}.")
    assert "3 keys, 3 entries" in explain(plan)
    assert "1 of these keys exist now" in explain(plan)
    struck: set[str] = set()
    done = operated.do_although_killed(plan, killing_at_stages(struck))
    assert len(struck) > 4, "it was killed at its stages, and gone on with"
    assert operated.logged() == {**before, "key-0": 4}
    assert operated.verbs.audit(operated.group, ())[0].differences == ()
    assert not [name for name in operated.topics.listed()[0] if name.startswith(f"{operated.group}--fill-")]

    # Before a file is put back, the present values of its keys are exported to another file. The printed undo command
    # puts that other file back, so key-1 gets the value that it had before.
    assert "FILE" not in plan.undo
    undo = next(note.text.partition(". Undo: ")[2] for note in done.notes if note.stage == "adopt_table")
    _, *words = shlex.split(undo.strip("`"))
    assert [json.loads(line)["key"] for line in Path(words[-2]).read_text().splitlines()] == ["key-1"]
    capfd.readouterr()
    assert main(words) == 0
    assert operated.logged() == {**before, "key-0": 4, "key-1": 1}
    operated.feed(keys=2, each=1)
    operated.processed(64)
    assert operated.logged() == {**before, "key-0": 5, "key-1": 2}

    # the file was changed: its keys moved to another partition, or it is invalid
    shown = operated.verbs.plan(request)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "partition": 1 - line["partition"]}) + "\n" for line in lines))
    with pytest.raises(Exception, match="outdated: file was"):
        operated.verbs.apply(shown, confirmed=shown.hash)
    with pytest.raises(FileUnfit, match="go to another one"):
        operated.do(request)
    assert operated.logged() == {**before, "key-0": 5, "key-1": 2}
    assert not [name for name in operated.topics.listed()[0] if name.startswith(f"{operated.group}--fill-")]
    file.write_text("{}\n")
    refused = operated.verbs.plan(request)
    assert isinstance(refused.verdict, Refused)
    assert "Line 1 is no entry" in refused.verdict.sentence
