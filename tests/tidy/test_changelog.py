"""The change log has short sections by release, and one fragment (a small file) for each change since the last release.

CONTRIBUTING.md says how to write a fragment. Fragments have the types of ``[tool.towncrier]`` in ``pyproject.toml``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.test_words import judged, sentences

PROJECT = Path(__file__).resolve().parent.parent.parent
CONFIG = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["towncrier"]
FOLDER, PAGE = PROJECT / CONFIG["directory"], PROJECT / CONFIG["filename"]
TEMPLATE = PROJECT / CONFIG["template"]
TYPES = tuple(each["directory"] for each in CONFIG["type"])
FRAGMENTS = sorted(path for path in FOLDER.iterdir() if path != TEMPLATE)
#: A file name has hyphens between its words, so that a listing of the folder is readable.
NAME = re.compile(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(TYPES)})\.md")
LINE_LENGTH = 140
#: Maximum lines of a release's section, so that users can read it in a few minutes.
SECTION_LINES = 120
#: Markup that a fragment must not have, because it becomes one item of a list.
_MARKUP = re.compile(r"^\s*([-*#>|]|\d+\.\s|```)", re.M)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def faults(name: str, text: str) -> Iterator[str]:
    """Return the faults of a fragment, as messages for its author."""
    if not NAME.fullmatch(name):
        yield f"{name}: name it <short-name>.<{'|'.join(TYPES)}>.md, in small letters with hyphens"
    if (count := len(sentences(text))) not in (1, 2, 3):
        yield f"{name}: {count} sentences; a fragment has one to three"
    if "\n\n" in text.strip() or _MARKUP.search(text):
        yield f"{name}: a fragment is one paragraph without lists, headings or blocks"
    if not text.strip().endswith("."):
        yield f"{name}: the last sentence ends with a full stop"
    if any(len(line) > LINE_LENGTH for line in text.splitlines()):
        yield f"{name}: a line is longer than {LINE_LENGTH}"
    for link in _LINK.findall(text):
        if "://" not in link and not (PROJECT / link).exists():
            yield f"{name}: {link} does not exist; a link is a path from the project's folder"
    yield from (each.text for each in judged(name, 1, text))


def test_a_fragment_is_one_to_three_plain_sentences() -> None:
    # One test for all fragments. Right after a release there are no fragments, and a skipped test would fail the run.
    assert [fault for path in FRAGMENTS for fault in faults(path.name, path.read_text(encoding="utf-8"))] == []


GOOD = "Workers stop on a full disk ([recovery](docs/recovery.md#faults-and-remedies)). `HOLDFAST_X` is gone."


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("full-disk.fixed.md", GOOD, ""),
        ("full_disk.fixed.md", GOOD, "name it"),
        ("full-disk.bugfix.md", GOOD, "name it"),
        ("40.fixed.txt", GOOD, "name it"),
        ("full-disk.fixed.md", "", "0 sentences"),
        ("full-disk.fixed.md", "One. Two. Three. Four.", "4 sentences"),
        ("full-disk.fixed.md", "One.\n\nTwo.", "one paragraph"),
        ("full-disk.fixed.md", "- One.", "one paragraph"),
        ("full-disk.fixed.md", "Workers stop on a full disk", "full stop"),
        ("full-disk.fixed.md", "Workers stop. " + "x" * 140 + ".", "longer"),
        ("full-disk.fixed.md", "Workers stop ([there](recovery.md)).", "recovery.md does not exist"),
        ("full-disk.fixed.md", "Any more is one of the phrases that the rules name.", "Any more"),
        ("full-disk.fixed.md", "Workers stop " + "because of it " * 10 + "then.", "words"),
    ],
)
def test_a_fragment_that_breaks_a_rule_is_named(name: str, text: str, fault: str) -> None:
    found = list(faults(name, text))
    assert any(fault in each for each in found) if fault else found == []


def test_towncrier_makes_a_section_of_all_fragments() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for path in FRAGMENTS:
        assert " ".join(path.read_text(encoding="utf-8").split()) in " ".join(done.stdout.split())


def test_the_page_says_where_the_next_release_goes() -> None:
    assert PAGE.read_text(encoding="utf-8").count(CONFIG["start_string"]) == 1


def test_no_release_is_longer_than_users_read() -> None:
    _, *releases = re.split(r"^(?=## )", PAGE.read_text(encoding="utf-8"), flags=re.M)
    assert releases
    assert [each.splitlines()[0] for each in releases if len(each.splitlines()) > SECTION_LINES] == []
