"""A test must not patch a constant that a function uses as a default argument.

The patch would have no effect, because Python evaluates defaults only once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.mechanics.trees import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("infra", "processors", "assets", "orchestration")
#: Matches ``patch.setattr(module, "CONSTANT", ...)``, and rows ``(module, "CONSTANT", ...)`` in a table of patches.
SET = re.compile(r'\(\s*(?:\w+\.)*(\w+), "([A-Z][A-Z0-9_]+)"')


def set_by_tests() -> set[tuple[str, str]]:
    """The constants that tests set, as pairs: the last part of the module's name, and the constant's name."""
    texts = (file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__))
    return {(found[1], found[2]) for text in texts for found in SET.finditer(text)}


def captured(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and name of each constant that is evaluated once, as the default of an argument or a field."""
    for node in nodes_of(tree):
        if isinstance(node, ast.arguments):
            once = [*node.defaults, *(each for each in node.kw_defaults if each is not None)]
        elif isinstance(node, ast.ClassDef):
            once = [each.value for each in node.body if isinstance(each, ast.AnnAssign) and each.value is not None]
        else:
            continue
        yield from (
            (each.lineno, each.id) for default in once for each in ast.walk(default) if isinstance(each, ast.Name)
        )


def test_no_constant_that_a_test_sets_was_taken_as_a_default_before() -> None:
    set_ = set_by_tests()
    assert ("restore", "RECORDS_PER_STEP") in set_, "the pattern finds what the simulation sets"
    modules = {module for module, _ in set_}
    found = [
        f"{file.relative_to(ROOT)}:{line} takes {name} as a default when it is defined: tests that set it set nothing"
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        if file.stem in modules
        for line, name in captured(tree_of(file))
        if (file.stem, name) in set_
    ]
    assert found == []
