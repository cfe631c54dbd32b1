"""One apply (the execution of a plan) may export several files. They are joined into one file with all keys.

The joined file can be restored.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.processors.lifecycle.plans.execution import put_back_by
from holdfast.processors.lifecycle.world import joined_exports
from holdfast.processors.lifecycle.world.export_files import file_facts
from holdfast.processors.lifecycle.world.joined_exports import joined

STEP = "2026-11-29T13:55:00.123456+00:00/7/2"
NAME = "20261129T135500123456-apply-7.jsonl"


def part(folder: Path, name: str, *entries: tuple[str, int, str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    lines = (
        {"store": store, "partition": partition, "key": key, "state": "n", "timestamp_ms": 1, "value": value}
        for store, partition, key, value in entries
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def values(path: str) -> dict[str, Any]:
    return {line["key"]: line["value"] for line in map(json.loads, Path(path).read_text().splitlines())}


def test_six_files_of_three_partitions_become_one_and_another_stage_adds_to_it(tmp_path: Path) -> None:
    parts = [part(tmp_path, f"{number}.jsonl", ("counts", number % 3, f"k{number}", number)) for number in range(6)]
    (whole,) = joined(parts, tmp_path, STEP)
    assert Path(whole).name == NAME
    assert values(whole) == {f"k{number}": number for number in range(6)}
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert Path(whole).stat().st_mode & 0o777 == 0o600
    more = part(tmp_path, "later.jsonl", ("users", 0, "u", 1))
    assert joined([more], tmp_path, STEP.replace("/2", "/3")) == (whole,)
    facts = file_facts(whole)
    assert {name: each.entries for name, each in facts.stores.items()} == {"counts": 6, "users": 1}


def test_a_single_file_gets_the_name_of_its_apply(tmp_path: Path) -> None:
    assert joined([part(tmp_path, "a.jsonl", ("counts", 0, "k", 1))], tmp_path, STEP) == (str(tmp_path / NAME),)
    assert joined([], tmp_path, STEP) == (str(tmp_path / NAME),), "a repeated stage that exported nothing"
    assert joined([], tmp_path, STEP.replace("/7/", "/8/")) == ()


def test_a_join_that_was_broken_off_before_it_deleted_its_parts_gives_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [part(tmp_path, f"{number}.jsonl", ("counts", number, f"k{number}", 1)) for number in (0, 1)]

    class Killed(BaseException):
        pass

    def killed(folder: Path) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(joined_exports, "_settle", killed)
        with pytest.raises(Killed):
            joined(parts, tmp_path, STEP)
    assert all(Path(each).exists() for each in parts)
    (whole,) = joined(parts, tmp_path, STEP)
    assert len(Path(whole).read_text().splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_two_values_of_one_entry_stay_in_two_files(tmp_path: Path) -> None:
    parts = [part(tmp_path, f"{value}.jsonl", ("counts", 0, "k", value)) for value in (5, 1)]
    assert joined(parts, tmp_path, STEP) == tuple(parts)
    assert [values(each) for each in parts] == [{"k": 5}, {"k": 1}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.jsonl", "5.jsonl"]


def test_a_part_of_another_machine_and_a_full_disk_leave_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = part(tmp_path, "here.jsonl", ("counts", 0, "k", 1))
    assert joined([here, "/elsewhere/b.jsonl"], tmp_path, STEP) == (here, "/elsewhere/b.jsonl")
    other = part(tmp_path, "other.jsonl", ("counts", 1, "l", 1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert joined([here, other], tmp_path, STEP) == (here, other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.jsonl", "other.jsonl"]


def test_the_command_of_the_undo_is_ready_to_run() -> None:
    assert put_back_by("shop", ()) == ""
    assert put_back_by("shop", ("/my home/a.jsonl",)) == (
        ". Undo: `holdfast restore shop --from-file '/my home/a.jsonl' --yes`"
    )
