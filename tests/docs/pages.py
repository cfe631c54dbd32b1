"""The pages for readers, and their code blocks."""

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
    """One fenced block; ``reason`` says why a page's block is not run, and is empty for all others."""

    page: str
    number: int
    language: str
    text: str
    reason: str

    @property
    def name(self) -> str:
        """The block's place, for the names of cases and files."""
        return f"{self.page}-{self.number}"


def code_blocks(*languages: str) -> Iterator[CodeBlock]:
    """The blocks of all pages, of some languages or of all."""
    for page in PAGES:
        found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
        for number, block in enumerate(found):
            if not languages or block["language"] in languages:
                name = page.relative_to(PROJECT).as_posix()
                yield CodeBlock(name, number, block["language"], block["text"], block["reason"] or "")
