"""The first half of set-up: what it can decide without installing anything."""

from __future__ import annotations

from holdfast.infra.bootstrap import BUILDERS, LOCK, python_problem, requirements_of


def test_an_old_python_is_told_which_one_is_needed() -> None:
    assert python_problem((3, 11)) is None
    assert python_problem((3, 10)) == "This is Python 3.10; Holdfast needs 3.11 or newer."


def test_the_builders_are_taken_from_the_lock_with_their_hashes() -> None:
    chosen = requirements_of(LOCK.read_text(), BUILDERS)
    names = [line.split("==")[0] for line in chosen.splitlines() if "==" in line]
    assert sorted(names) == sorted(BUILDERS)
    assert chosen.count("--hash=sha256:") >= 4
