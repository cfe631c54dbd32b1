"""Texts that no tracked file may contain, and requirements on the lock files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=PROJECT,
    capture_output=True,
    text=True,
    check=True,
).stdout.splitlines()
TEXT = [name for name in TRACKED if Path(name).suffix not in {".png", ".svg", ".gz"} and (PROJECT / name).is_file()]

# Written in pieces, so that this file does not match its own patterns.
MACHINE_PATHS = re.compile("|".join(("/" + "work/", "/" + "tmp/" + "hf", "/" + "root/", "/" + "home/[a-z]")))
REGISTRY_HOSTS = re.compile(
    "|".join(
        ("pypi" + r"\.org", "python" + "hosted", "maven" + r"\.org", "maven" + r"\.apache\.org/maven2", "npm" + "js")
    )
)
CONFLICT_MARKERS = re.compile(r"^(<{7}|>{7})( |$)")
PAGE_LINES = 250
COMMANDS = re.compile(r"^([a-z-]+):", re.M)


def read(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize(
    "pattern",
    [MACHINE_PATHS, REGISTRY_HOSTS, CONFLICT_MARKERS],
    ids=["machine paths", "registry hosts", "conflict markers"],
)
def test_no_file_names_a_place_of_one_machine_or_a_registry_or_holds_a_conflict(pattern: re.Pattern[str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name in TEXT
        for number, line in enumerate(read(name).splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found


def test_the_lock_pins_every_package_with_hashes_and_names_no_address() -> None:
    lock = read("requirements.lock")
    assert "://" not in lock
    entries = re.findall(
        r"^([A-Za-z0-9_.\[\],-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", lock, re.M
    )
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9]", lock, re.M))
    assert len(entries) > 50


def test_the_lock_holds_what_the_project_asks_for() -> None:
    asked = re.findall(r"^([a-z0-9-]+)(?:\[[\w,-]+\])?==([\w.]+)", read("requirements.in"), re.M)
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", read("requirements.lock"), re.M))
    assert {name: locked.get(name) for name, _ in asked} == dict(asked)


PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(path.relative_to(PROJECT).as_posix() for path in (PROJECT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_no_make_target_that_does_not_exist(page: str) -> None:
    text = read(page) if (PROJECT / page).exists() else ""
    targets = set(COMMANDS.findall(read("Makefile")))
    assert set(re.findall(r"`make ([a-z-]+)`|^\$? ?make ([a-z-]+)", text, re.M)) <= {
        pair for target in targets for pair in ((target, ""), ("", target))
    }


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_a_page_of_the_docs_is_not_long(page: str) -> None:
    assert len(read(page).splitlines()) <= PAGE_LINES, (
        "split it by what readers look for, and keep its headings as links"
    )


def test_every_make_target_says_what_it_does() -> None:
    lines = [line for line in read("Makefile").splitlines() if re.match(r"[a-z-]+:", line)]
    assert [line for line in lines if "## " not in line] == []
