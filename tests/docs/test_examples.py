"""The Python of all pages is Python, and what declares an application declares one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application

PROJECT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = [
    pytest.param(code, id=f"{page.relative_to(PROJECT)}-{number}")
    for page in [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
]
DECLARATIONS = [example for example in EXAMPLES if "from holdfast import Application" in str(example.values[0])]


def test_there_are_examples() -> None:
    assert len(DECLARATIONS) >= 5


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_is_python(code: str) -> None:
    compile(code, "example", "exec")


@pytest.mark.parametrize("code", DECLARATIONS)
def test_a_declaration_declares_an_application(code: str) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code.replace("app.run()", "pass"), "example", "exec"), names)
    built = names["build"]() if "build" in names else names["app"]
    assert isinstance(built, Application)
