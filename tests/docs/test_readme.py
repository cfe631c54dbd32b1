"""Commands, paths, links and examples on the pages exist and work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast import Application, InMemoryCluster
from holdfast.orchestration.cli import app as command_line
from tests.docs.pages import PAGES as EVERY_PAGE

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGES = tuple(path.relative_to(PROJECT).as_posix() for path in EVERY_PAGE if path.parent.name != "tests")
#: The folders to which a path on a page may be relative: the checkout's root, or one of these.
ROOTS = ("", "infra", "processors", "assets", "orchestration")

every_page = pytest.mark.parametrize("page", PAGES)


def text_of(page: str) -> str:
    return (PROJECT / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def prose_of(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def quoted(text: str) -> list[str]:
    """The texts in backticks outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", prose_of(text))


def typed(text: str, program: str) -> set[str]:
    """The first words after ``program``, in backticks or on a console line."""
    lines = [line[2:] for block in blocks(text, "console") for line in block.splitlines() if line.startswith("$ ")]
    return {
        match[1]
        for line in [*quoted(text), *lines]
        for match in re.finditer(rf"(?:^|(?<!from)[\s/]){program} ([a-z][a-z-]*)", line)
    }


def commands() -> set[str]:
    return {
        command.name or command.callback.__name__.replace("_", "-")
        for command in command_line.registered_commands
        if command.callback is not None
    } | set(typer.main.get_command(command_line).commands)  # type: ignore[attr-defined]


def paths(text: str) -> list[str]:
    """The quoted texts that look like paths of this repository."""
    return [
        word
        for word in quoted(text)
        if re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*/?", word)
        and "/" in word
        and word.endswith((".py", ".md", ".lock", ".yaml", "/"))
    ]


def test_the_pages_hold_what_these_tests_look_for() -> None:
    """The patterns of these tests match known texts.

    A pattern without any match would let the other tests pass without a check.
    """
    readme = text_of("README.md")
    assert {"demo", "test"} <= typed(readme, "make")
    assert "status" in typed(text_of("docs/commands.md"), "holdfast")
    assert "tests/kafka/test_random_kills.py" in paths(text_of("docs/guarantees.md"))
    assert "infra/" in paths(text_of("ARCHITECTURE.md"))


@every_page
def test_make_targets_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    assert typed(text_of(page), "make") - targets == set()


@every_page
def test_commands_exist(page: str) -> None:
    assert typed(text_of(page), "holdfast") - commands() == set()


def test_every_command_is_on_the_page_of_commands() -> None:
    assert commands() - typed(text_of("docs/commands.md"), "holdfast") == set()


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(text_of("README.md").splitlines()) <= 150


@every_page
def test_paths_exist(page: str) -> None:
    def is_there(path: str) -> bool:
        found = [PROJECT / root / path for root in ROOTS]
        return any(each.is_dir() if path.endswith("/") else each.is_file() for each in found)

    assert [path for path in paths(text_of(page)) if not is_there(path)] == []


@every_page
def test_links_lead_to_files(page: str) -> None:
    """Links to images and other pages are relative to the page's folder."""
    folder = (PROJECT / page).parent
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(text_of(page)))]
    assert [link for link in targets if link and "://" not in link and not (folder / link).is_file()] == []


@every_page
def test_links_lead_to_headings(page: str) -> None:
    folder = (PROJECT / page).parent
    links = [link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(text_of(page)))]
    lost = [
        f"{file}#{anchor}"
        for file, _, anchor in links
        if anchor and "://" not in file and anchor not in anchors(folder / file if file else PROJECT / page)
    ]
    assert lost == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_example_declares_one_input_and_one_store_and_counts_what_is_there() -> None:
    example, last = blocks(text_of("README.md"), "python")[0].rstrip().rsplit("\n", 1)
    assert last == "app.run()"
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "README.md", "exec"), names)

    application = names["app"]
    assert isinstance(application, Application)
    topology = application.topology()
    assert len(topology.inputs) == 1
    assert len(topology.stores) == 1
    assert [spec.store for spec in topology.changelogs] == [topology.stores[0].name]

    cluster = InMemoryCluster()
    cluster.create_topic("topic")
    for key in (b"a", b"b", b"a"):  # messages that exist before the application's first start
        cluster.produce("topic", b'{"n": 1}', key)
    cluster.run(application)
    totals = [(record.key, record.value) for _, record in cluster.read("totals")]
    assert totals == [(b"a", b'{"n":1,"total":1}'), (b"b", b'{"n":1,"total":1}'), (b"a", b'{"n":1,"total":2}')]
