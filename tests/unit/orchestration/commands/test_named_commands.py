"""Every `holdfast` command that a message names is valid: it exists, and so do its options and arguments."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.orchestration.cli import app
from holdfast.orchestration.commands.lazy import loaded
from tests.mechanics.trees import nodes_of, tree_of

PROJECT = Path(__file__).resolve().parents[4]
FOLDERS = ("infra", "processors", "assets", "orchestration")
COMMAND_LINE = loaded(app)
#: Stands for a value that an f-string inserts at run time.
VALUE = "VALUE"


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and content of each string of a module, without docstrings."""
    nodes = nodes_of(tree)
    apart = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    apart |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else VALUE for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
            yield node.lineno, node.value


def named_commands() -> Iterator[tuple[str, str]]:
    """Yield each `holdfast` command that a string in the code shows in backticks, as (file and line, words)."""
    for folder in FOLDERS:
        for path in sorted((PROJECT / folder).rglob("*.py")):
            for line, text in texts(tree_of(path)):
                for words in re.findall(r"`holdfast ([a-z][^`]*)`", text):
                    yield f"{path.relative_to(PROJECT)}:{line}", words


def parse(words: list[str]) -> None:
    """Parse a command line like `holdfast`, without running it."""
    command = COMMAND_LINE
    while hasattr(command, "commands") and words:
        command, words = command.commands[words[0]], words[1:]
    if not hasattr(command, "commands"):
        command.make_context("holdfast", words)


def fault_of(words: str) -> str:
    """Why a named command can't be typed; empty if it can."""
    # Replace inserted values by words that can be parsed. Of two inserted values in a row, the second stands for
    # options. A value directly behind a word is a part of the word. Any other value is a name or a number.
    typed = re.sub(rf"(?<!scale ){VALUE} {VALUE}", VALUE, words.replace(f"--from {VALUE}", "--from topic"))
    typed = re.sub(rf"(?<=\w){VALUE}", "", typed)
    typed = re.sub(rf"\b({VALUE}|N)\b", "1", typed)
    try:
        parse(shlex.split(typed))
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
    return ""


def test_each_named_command_can_be_typed() -> None:
    # One test case checks all commands. With a case for each command, each test process would parse the whole product
    # just to collect the cases.
    named = list(named_commands())
    assert len(named) > 200
    assert [(place, words, fault) for place, words in named if (fault := fault_of(words))] == []


def test_a_named_command_that_is_not_there_is_found() -> None:
    assert "No such option" in fault_of("apply clear fleet --everything")


@pytest.mark.parametrize("words", ["apply abandon 1", "apply deploy", "apply clean fleet", "audit fleet --shop x"])
def test_what_cannot_be_typed_is_found(words: str) -> None:
    with pytest.raises(Exception, match=r"Missing|No such|unexpected"):
        parse(words.split())
