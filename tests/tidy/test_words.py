"""Counts banned phrases, long sentences, and docstrings that only repeat a name, for each file.

The rules are in ``docs/writing.md``. The check reads pages, command help, descriptions, messages and actions of errors,
and docstrings. ``words_left.json`` has the counts of faulty texts that are older than this check. A count may only
fall, and the goal is an empty file::

    .venv/bin/python tests/tidy/test_words.py             lists what is found, by file and line
    .venv/bin/python tests/tidy/test_words.py --write     lowers the counts; refuses to raise one

When text moves, its count may move with it. A file's count may rise if the sum of its area (``processors/engine``,
``docs``) does not. A new file may have a count if the sum of all files does not rise.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.mechanics.trees import nodes_of, tree_of

PROJECT = Path(__file__).resolve().parent.parent.parent
LEFT = Path(__file__).with_name("words_left.json")
FOLDERS = ("holdfast", "orchestration", "assets", "processors", "infra")
#: The pages to check. Other pages in docs/reference are left out, because they are generated from texts in the code.
#: The check reads these texts in the code.
PAGES = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/decisions/*.md"),
    *("docs/tasks/*.md", "docs/coming-from/*.md", "docs/examples/*.md", "docs/reference/README.md"),
)
#: This page is not checked, because its table quotes the banned phrases.
ITSELF = "docs/writing.md"
WORDS_MAX = 30

#: Banned phrases, each with its replacement.
PHRASES = {
    r"(come|comes|came|coming) to work": "starts, runs",
    r"anew": "again, from the start",
    r"(go|goes|went|going) on\b(?! (holiday|air))": "continues, resumes",
    r"(get|gets|got|getting) on": "processes input, makes progress",
    r"(is|are|was|were|be) told": "is reported, is logged; name who reads it",
    r"tells of": "names, reports",
    r"who (finds|remembers)": "name the process or the person",
    r"whoever": "name the process or the person",
    r"such (a|an) one": "name the thing",
    r"so many (of|times|messages|seconds|records)": "a number, or: at most N",
    r"(become|becomes|became) of": "the outcome, the result",
    r"that is why": "because, so",
    r"from then on": "after that",
    r"any more": "no longer",
    r"at the (most|least)": "at most, at least",
    r"for people": "say what the text contains",
    r"hands off": "does nothing, is paused",
    r"(is|are|was|were) looked (at|into)": "is checked, is read",
    r"can't be had": "is lost, can't be restored",
    r"has the words of": "contains, formats",
}
_BANNED = re.compile("|".join(rf"(?<![\w-])(?:{phrase})(?![\w-])" for phrase in PHRASES), re.I)
_SEE = re.compile(r"\bsee ``", re.I)
#: Keyword arguments whose values users read.
_SHOWN = frozenset({"action", "help", "description"})
#: Stands for a value that is inserted at run time.
_VALUE = "VALUE"
_EMPTY_WORDS = frozenset({"a", "an", "the", "this", "its", "it", "of", "to", "self", "s"})


class Finding(NamedTuple):
    """One text that must be rewritten."""

    file: str
    line: int
    text: str


def sentences(text: str) -> list[str]:
    """The sentences of a running text."""
    return [part for part in re.split(r"(?<=[.!?])[)\"'*]*\s+(?=[\"'(*`A-Z0-9])", " ".join(text.split())) if part]


def words(sentence: str) -> int:
    """The number of words in a sentence. Literal code counts as one word."""
    plain = re.sub(r"``?[^`]+``?", " x ", sentence)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    return sum(any(sign.isalnum() for sign in word) for word in plain.split())


def banned(text: str) -> list[str]:
    """The banned phrases in a text, except in literal code."""
    return [found[0] for found in _BANNED.finditer(re.sub(r"``?[^`]+``?", " x ", " ".join(text.split())))]


def judged(file: str, line: int, text: str) -> Iterator[Finding]:
    """The findings in one text that users read."""
    for phrase in banned(text):
        yield Finding(file, line, f"{phrase!r} in: {' '.join(text.split())[:90]}")
    for sentence in sentences(text):
        if (count := words(sentence)) > WORDS_MAX:
            yield Finding(file, line, f"{count} words: {sentence[:90]}")


# -- texts of pages ------------------------------------------------------------------------------------------------


def blocks(page: str) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph, list item and table cell of a page, without code, pictures and comments."""
    line, held, fenced = 0, "", False
    for number, row in enumerate(page.splitlines(), 1):
        bare = row.strip()
        if bare.startswith("```"):
            fenced = not fenced
            bare = ""
        elif fenced or (row.startswith("    ") and not held):
            bare = ""
        single = bare.startswith(("|", "#", "![", "<!--"))
        if held and (not bare or single or re.match(r"([-*]|\d+\.) ", bare)):
            yield line, held
            held = ""
        if bare.startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", bare) if cell.strip())
        elif bare.startswith("#"):
            yield number, bare.lstrip("# ")
        elif bare and not single:
            line = line if held else number
            held += " " + re.sub(r"^([-*>]|\d+\.) ", "", bare)
    if held:
        yield line, held


def of_page(path: Path) -> Iterator[Finding]:
    """The findings in one page."""
    file = path.relative_to(PROJECT).as_posix()
    if file != ITSELF:
        for line, text in blocks(path.read_text(encoding="utf-8")):
            yield from judged(file, line, text)


# -- texts in code -------------------------------------------------------------------------------------------------


def literal(node: ast.expr | None) -> Iterator[str]:
    """The texts that an expression can produce, with ``VALUE`` for inserted values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else _VALUE for part in node.values)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for first in literal(node.left):
            yield from (first + second for second in literal(node.right))
    elif isinstance(node, ast.IfExp):
        yield from literal(node.body)
        yield from literal(node.orelse)


def name_of(node: ast.expr) -> str:
    """The last part of the name of a called function or a base class."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def error_classes(trees: Iterable[ast.Module]) -> set[str]:
    """The names of ``HoldfastError`` and all its subclasses."""
    bases = {
        node.name: {name_of(base) for base in node.bases}
        for tree in trees
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef)
    }
    known = {"HoldfastError"}
    while more := {name for name, parents in bases.items() if parents & known} - known:
        known |= more
    return known


def shown_texts(tree: ast.Module, errors: set[str]) -> Iterator[tuple[int, str]]:
    """Line and text of everything that the code shows to users."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call):
            parts = [each.value for each in node.keywords if each.arg in _SHOWN]
            if name_of(node.func) in errors:
                parts += node.args[:1]
            for part in parts:
                yield from ((part.lineno, text) for text in literal(part))


def split_name(name: str) -> set[str]:
    """The words of a name, in lower case."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def repeats(docstring: str, *names: str) -> bool:
    """Whether a docstring only repeats the words of the name."""
    said = {word.lower() for word in re.findall(r"[A-Za-z0-9]+", docstring)} - _EMPTY_WORDS
    known = set().union(*(split_name(name) for name in names))
    return all(word in known or word.removesuffix("s") in known or f"{word}s" in known for word in said)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Line, text and names of each docstring. The names of a method are its own name and that of its class."""
    owners: dict[ast.AST, str] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            owner = node.name if isinstance(node, ast.ClassDef) else ""
            owners.update(dict.fromkeys(node.body, owner))
            text = ast.get_docstring(node)
            if text is not None:
                named = () if isinstance(node, ast.Module) else (node.name, owners.get(node, ""))
                yield node.body[0].lineno, text, named


def of_module(path: Path, tree: ast.Module, errors: set[str]) -> Iterator[Finding]:
    """The findings in one module."""
    file = path.relative_to(PROJECT).as_posix()
    for line, text in shown_texts(tree, errors):
        yield from judged(file, line, text)
    for line, text, names in docstrings(tree):
        for phrase in banned(text):
            yield Finding(file, line, f"{phrase!r} in a docstring: {' '.join(text.split())[:90]}")
        for _ in _SEE.finditer(text):
            yield Finding(file, line, f"sends the reader elsewhere: {' '.join(text.split())[:90]}")
        if names and repeats(text, *names):
            yield Finding(file, line, f"repeats the name {names[0]}: {text[:90]}")


# -- the allowed counts, which may only fall -----------------------------------------------------------------------


def findings() -> list[Finding]:
    """All texts to rewrite, ordered by file and line."""
    modules = [path for folder in FOLDERS for path in sorted((PROJECT / folder).rglob("*.py"))]
    trees = {path: tree_of(path) for path in modules if not linked(path)}
    errors = error_classes(trees.values())
    found = [each for pattern in PAGES for path in sorted(PROJECT.glob(pattern)) for each in of_page(path)]
    found += [each for path, tree in trees.items() for each in of_module(path, tree, errors)]
    return sorted(found)


def linked(path: Path) -> bool:
    """Whether the path leads through a symbolic link. The same file is then checked under its real path."""
    return path.resolve() != path


def allowed() -> dict[str, int]:
    """The counts that ``words_left.json`` allows, by file."""
    return {file: int(count) for file, count in json.loads(LEFT.read_text(encoding="utf-8")).items()}


def area_of(file: str) -> str:
    """The area of a file: the first two folders for files in ``processors``, otherwise the first folder."""
    parts = file.split("/")[:-1]
    return "/".join(parts[: 2 if parts[:1] == ["processors"] else 1])


def areas(counts: Mapping[str, int]) -> Counter[str]:
    """The sums of the counts by area."""
    sums: Counter[str] = Counter()
    for file, count in counts.items():
        sums[area_of(file)] += count
    return sums


def risen(counts: Counter[str], left: dict[str, int]) -> list[str]:
    """The files with more findings than allowed."""
    before = areas(left)
    grown = {area for area, count in areas(counts).items() if count > before[area]}
    more_in_all = counts.total() > sum(left.values())
    over = [file for file, count in counts.items() if count > left.get(file, 0) and area_of(file) in grown]
    return sorted(file for file in over if more_in_all or file in left)


def test_no_file_has_more_to_rewrite_than_before() -> None:
    found = findings()
    over = risen(Counter(each.file for each in found), allowed())
    assert [f"{each.file}:{each.line}: {each.text}" for each in found if each.file in over] == []


def test_the_counts_left_name_real_numbers() -> None:
    assert all(count > 0 for count in allowed().values())


def test_what_the_check_finds() -> None:
    """The check finds known phrases. A check that never finds a phrase would prove nothing."""
    assert banned("The worker begins anew, and nobody is told.") == ["anew", "is told"]
    assert banned("The quote `begins anew` is literal; targets only; topic shop-anew-changelog.") == []
    assert [words(each) for each in sentences("Run `holdfast apply clear x` now. It takes 3 s.")] == [3, 4]
    assert repeats("Close.", "close", "Session")
    assert repeats("The session's state.", "state", "Session")
    assert not repeats("Flush and release the lock.", "close", "Session")
    tree = ast.parse('raise Lost(f"Topic {name} " "is gone." if one else "Two.", action="Create " + "it.")')
    assert {text for _, text in shown_texts(tree, {"Lost"})} == {"Topic VALUE is gone.", "Two.", "Create it."}
    assert error_classes([ast.parse("class A(HoldfastError): ...\nclass B(x.A): ...\nclass C: ...")]) == {
        "HoldfastError",
        "A",
        "B",
    }
    page = "# Title\n\nOne\ntwo.\n\n```\ncode anew\n```\n\n| a | b c |\n|---|---|\n- item\n  goes\n"
    assert [text.strip() for _, text in blocks(page) if text.strip("- ")] == [
        "Title",
        "One two.",
        "a",
        "b c",
        "item goes",
    ]


def test_text_that_moves_takes_its_count_along() -> None:
    left = {"a/old.py": 2, "a/stays.py": 1, "b/other.py": 3}
    assert risen(Counter({"b/new.py": 2, "a/stays.py": 1, "b/other.py": 3}), left) == []
    assert risen(Counter({"b/new.py": 3, "a/stays.py": 1, "b/other.py": 3}), left) == ["b/new.py"]
    assert risen(Counter({"a/stays.py": 3, "b/other.py": 3}), left) == []
    assert risen(Counter({"a/stays.py": 4, "b/other.py": 2}), left) == ["a/stays.py"]
    assert risen(Counter({"b/other.py": 4}), left) == ["b/other.py"]


def main(write: bool) -> int:
    """List the findings, or write the counts if none has risen."""
    found = findings()
    counts = Counter(each.file for each in found)
    if not write:
        for each in found:
            print(f"{each.file}:{each.line}: {each.text}")
        print(f"{counts.total()} findings in {len(counts)} files")
        return 0
    if LEFT.exists() and (over := risen(counts, allowed())):
        print("These files have more findings than before; rewrite their texts:", *over, sep="\n  ")
        return 1
    LEFT.write_text(json.dumps(dict(sorted(counts.items())), indent=2) + "\n", encoding="utf-8")
    print(f"{counts.total()} findings are left in {len(counts)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
