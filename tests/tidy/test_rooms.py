"""Size limits of the code: modules in a folder, very small modules, members of a class, lines of test files.

The folders of unit tests have the same names as those of the code.

``rooms_left.json`` lists what exceeds a limit today. A number in it may only fall, and the goal is an empty file::

    .venv/bin/python -m tests.tidy.test_rooms             lists what is over a limit
    .venv/bin/python -m tests.tidy.test_rooms --write     lowers the numbers; refuses to raise one, or to add a name

A *crumb* is a module of few lines that only one module imports. It should be part of the importing module. Two kinds of
crumbs may stay: an adapter of a vendor's library, and a pure function that makes one decision. Such a module states its
reason in a comment on a separate line::

    # tidy: allow-crumb because it is all that loads numpy
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeGuard

from tests.mechanics.trees import nodes_of, tree_of
from tests.tidy.test_code import FOLDERS as FLOORS
from tests.tidy.test_code import MODULES, PROJECT, TEST_FILES, allowed, assigned, imports, name_of

UNIT = PROJECT / "tests" / "unit"
UNIT_TESTS = sorted(UNIT.rglob("*.py"))
#: The folder of unit tests that may cover all folders of the code.
PINS = "pins"
LEFT = Path(__file__).with_name("rooms_left.json")
MODULES_MAX, CRUMB_LINES, METHODS_MAX, ATTRIBUTES_MAX, TEST_LINES_MAX = 15, 60, 15, 15, 500
#: The kinds of limits, as keys of ``rooms_left.json``.
FOLDERS, CRUMBS, METHODS, ATTRIBUTES, TESTS = (
    "modules of a folder",
    "crumbs",
    "methods",
    "attributes",
    "lines of a test",
)


@cache
def found() -> dict[str, dict[str, int]]:
    """Return the numbers that exceed a limit, by kind and place."""
    return {
        FOLDERS: {name: count for name, count in _folders().items() if count > MODULES_MAX},
        CRUMBS: dict(_crumbs()),
        METHODS: {place: count for place, count, _ in _classes() if count > METHODS_MAX},
        ATTRIBUTES: {place: count for place, _, count in _classes() if count > ATTRIBUTES_MAX},
        TESTS: {name_of(path): lines for path in TEST_FILES if (lines := _lines(path)) > TEST_LINES_MAX},
    }


def _folders() -> Mapping[str, int]:
    return Counter(name_of(path.parent) for path in [*MODULES, *UNIT_TESTS] if path.name != "__init__.py")


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _crumbs() -> Iterator[tuple[str, int]]:
    importers = Counter[str]()
    for path in MODULES:
        named = set()
        for node in nodes_of(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        importers.update(named | {name for _, name in imports(path)})
    for path in MODULES:
        text = path.read_text(encoding="utf-8").splitlines()
        if path.name == "__init__.py" or len(text) > CRUMB_LINES or any(allowed(line, "crumb") for line in text):
            continue
        dotted = "holdfast." + name_of(path).removesuffix(".py").replace("/", ".")
        if importers[dotted] == 1:
            yield name_of(path), len(text)


def _classes() -> Iterator[tuple[str, int, int]]:
    """Each class with its number of public methods, and of attributes that its ``__init__`` or body defines."""
    for path in MODULES:
        for node in nodes_of(tree_of(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = [
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_")
            ]
            attributes = {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign)
                and isinstance(each.target, ast.Name)
                and "ClassVar" not in ast.unparse(each.annotation)
            }
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    attributes |= {target.attr for target in assigned(each) if _is_own(target)}
            yield f"{name_of(path)} {node.name}", len(methods), len(attributes)


def _is_own(target: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"


def listed() -> dict[str, dict[str, int]]:
    """The numbers above a limit that ``rooms_left.json`` allows."""
    made: dict[str, dict[str, int]] = json.loads(LEFT.read_text(encoding="utf-8"))
    return made


def grown(now: Mapping[str, Mapping[str, int]], before: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Numbers that newly exceed a limit or have risen. A crumb (very small module) that is listed may grow."""
    return [
        f"{kind}: {place} has {number}, was {before.get(kind, {}).get(place, 'within the limit')}"
        for kind, places in now.items()
        for place, number in places.items()
        if number > before.get(kind, {}).get(place, 0) and not (kind == CRUMBS and place in before.get(kind, {}))
    ]


def test_no_room_grows_beyond_its_limit() -> None:
    assert grown(found(), listed()) == []


def test_the_list_has_nothing_that_is_within_its_limit() -> None:
    now = found()
    assert [f"{kind}: {place}" for kind, each in listed().items() for place in each if place not in now[kind]] == []


def test_unit_tests_lie_in_the_folder_of_the_code_that_they_test() -> None:
    tests = {path.parent.relative_to(UNIT).as_posix() for path in UNIT_TESTS} - {".", PINS}
    assert {name.partition("/")[0] for name in tests} == set(FLOORS)
    code = {name_of(path.parent) for path in MODULES}
    assert sorted(tests - code) == [], "no such folders of the code: move their tests to where the code has moved"


def test_what_is_new_or_larger_is_named() -> None:
    before = {CRUMBS: {"a.py": 30}, FOLDERS: {"infra": 20, "assets": 16}}
    now = {CRUMBS: {"a.py": 31, "b.py": 9}, FOLDERS: {"infra": 19, "assets": 17}}
    expected = ["crumbs: b.py has 9, was within the limit", "modules of a folder: assets has 17, was 16"]
    assert grown(now, before) == expected


def main() -> int:
    now, written = found(), "--write" in sys.argv
    if not written:
        print(json.dumps(now, indent=1))
        return 0
    worse = grown(now, listed()) if LEFT.exists() else []
    if worse:
        print(*worse, sep="\n")
        return 1
    LEFT.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
