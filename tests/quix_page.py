"""What the page of Quix Streams' examples says about tests."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coming-from" / "quix-examples.md"


def listed_under(*headings: str) -> set[str]:
    """The tests that the page lists in the sections with these headings."""
    sections = dict(
        re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    )
    return {name for heading in headings for name in re.findall(r"`(test_\w+)`", sections[heading])}
