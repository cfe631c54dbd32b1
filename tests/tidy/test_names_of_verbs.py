"""Each verb appears in the public names, the glossary, the reference, the commands and the jobs."""

from __future__ import annotations

import re
from typing import get_args

import pytest

import holdfast
from holdfast.orchestration.commands.changes.requests import VERBS
from holdfast.processors.lifecycle.plans.requests import Deploy, Provision, PutBack, Request
from tests.tidy.test_code import PROJECT

#: The table of all verbs, each with the class of its requests.
TABLE: dict[str, type] = {str(each.__struct_config__.tag): each for each in get_args(Request)}
#: Verbs without a Dagster job. Two of them are materialisations of an asset, one is only a terminal command.
WITHOUT_JOB = {Provision, Deploy, PutBack}


def page(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", TABLE)
def test_a_verb_has_a_public_name_in_the_reference(verb: str) -> None:
    name = TABLE[verb].__name__
    assert name in holdfast.__all__
    assert getattr(holdfast, name) is TABLE[verb]
    assert re.search(rf"^## {name}$", page("docs/reference/api-verbs.md"), re.MULTILINE)


def test_the_glossary_lists_all_verbs() -> None:
    (listed,) = re.findall(r"^\| verb \| a kind of change by plan: (.+) \|$", page("ARCHITECTURE.md"), re.MULTILINE)
    assert sorted(listed.split(", ")) == sorted(TABLE)


def test_each_verb_has_a_row_on_its_page_and_a_command() -> None:
    table = page("docs/verbs.md").partition("| verb | what it does |")[2].partition("\n\n")[0]
    rows = {words.split()[0] for words in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)}
    assert rows == set(TABLE) == set(VERBS)


def test_each_verb_has_a_job_that_the_page_of_verbs_names() -> None:
    from holdfast.orchestration.jobs.lifecycle_verbs import JOB_OF

    assert set(JOB_OF) == set(TABLE.values()) - WITHOUT_JOB
    written = page("docs/verbs.md")
    assert [job.name for job in JOB_OF.values() if f"`{job.name}`" not in written] == []
