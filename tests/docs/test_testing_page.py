"""Everything that the page on testing tells readers to call exists. ``test_examples.py`` runs its example."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.processors.testing import InMemoryCluster

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGE = PROJECT / "docs" / "testing.md"


def test_everything_that_is_asked_of_the_cluster_is_there() -> None:
    asked = set(re.findall(r"\bcluster\.(\w+)", PAGE.read_text(encoding="utf-8")))
    assert {"run", "produce", "read", "compact"} <= asked
    assert [name for name in sorted(asked) if not hasattr(InMemoryCluster(), name)] == []


def test_its_links_and_paths_lead_somewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    links = [PAGE.parent / target for target in re.findall(r"\]\(([^)#:\s]+)\)", text)]
    paths = [PROJECT / path for path in re.findall(r"`(\w+(?:/\w+)+/)`", text)]
    assert links
    assert paths
    assert [path for path in links + paths if not path.exists()] == []


def test_the_points_that_it_names_are_passed_by_clients() -> None:
    clients = "".join(path.read_text(encoding="utf-8") for path in (PROJECT / "processors" / "testing").glob("*.py"))
    named = set(re.findall(r"`(\w+:\w+)`", PAGE.read_text(encoding="utf-8")))
    assert "commit:sent" in named
    assert [point for point in named if f'point("{point}")' not in clients] == []
