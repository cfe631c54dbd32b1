"""A refactoring must not change code versions of deployed processors, hashes of plans, or JSON that programs read."""

from __future__ import annotations

import re

import pytest

from tests.combinations.grammar import SOURCES, STEPS
from tests.unit.pins.what_is_pinned import answers, examples, pinned, plans, version_of_code

#: After an intended change, write the files again. Note in the changelog which processors or plans will look changed.
MEANT = "If this is meant: `python -m tests.unit.pins.what_is_pinned`, and a line in the changelog"


def test_no_processor_looks_changed_that_is_not() -> None:
    changed = []
    for each in pinned("drawn"):
        now = version_of_code(each["code"], each["settings"])
        if now != {name: each[name] for name in now}:
            changed.append((each["code"], now))
    assert changed == [], MEANT


def test_every_step_is_pinned_in_three_processors() -> None:
    code = [each["code"] for each in pinned("drawn")]
    rare = []
    for step in (*STEPS, *SOURCES):
        method = re.search(r"\.\w+\(", step.code)
        assert method is not None
        if sum(method[0] in each for each in code) < 3:
            rare.append(step.name)
    assert rare == []


def test_no_processor_of_the_demo_looks_changed() -> None:
    assert examples() == pinned("examples"), MEANT


@pytest.mark.parametrize("request_", pinned("plans"))
def test_a_plan_keeps_its_hash(request_: str) -> None:
    assert plans()[request_] == pinned("plans")[request_], MEANT


def test_what_commands_print_for_programs_has_the_same_form() -> None:
    assert answers() == pinned("answers"), MEANT
