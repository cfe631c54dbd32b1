"""Reads the documentation pages and their code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    *(
        PROJECT / name
        for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")
    ),
    *sorted((PROJECT / "docs").rglob("*.md")),
]
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class CodeBlock:
    """One fenced code block. ``reason`` says why the block is not run; it is empty if the block is run."""

    page: str
    number: int
    language: str
    text: str
    reason: str

    @property
    def name(self) -> str:
        """The page and number of the block, for names of test cases and files."""
        return f"{self.page}-{self.number}"


def code_blocks(*languages: str) -> Iterator[CodeBlock]:
    """The code blocks of all pages, in the given languages or in all."""
    for page in PAGES:
        found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
        for number, block in enumerate(found):
            if not languages or block["language"] in languages:
                name = page.relative_to(PROJECT).as_posix()
                yield CodeBlock(name, number, block["language"], block["text"], block["reason"] or "")
