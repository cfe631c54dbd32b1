"""Everything that pages tell readers to type is valid: commands, options, files, make targets, modules, settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.infra.settings import Settings
from holdfast.orchestration.cli import app
from holdfast.orchestration.commands.changes.verbs import ExplainGroup
from holdfast.orchestration.commands.lazy import loaded
from tests.docs.pages import PAGES, PROJECT, CodeBlock, code_blocks
from tests.tidy.test_settings_documented import variables

COMMAND_LINE = loaded(app)
#: Programs that are not Holdfast's; their arguments are not checked.
OTHERS = {
    *(
        "cd",
        "cp",
        "curl",
        "docker",
        "echo",
        "generate",
        "git",
        "grep",
        "jq",
        "kill",
        "pip",
        "printf",
        "sed",
        "ss",
        "true",
        "uvicorn",
    ),
    *("venv-pack", "spark-submit", ".venv/bin/towncrier", "("),
}
SETTINGS = {name for name, _, _ in variables(Settings, "HOLDFAST_")}
#: Environment variables that only the tests read. They are no settings of Holdfast.
OTHER_VARIABLES = {"HOLDFAST_TEST_NO_SKIPS", "HOLDFAST_SCREENSHOTS"}
CONSOLE = [pytest.param(block, id=block.name) for block in code_blocks("console", "sh")]


def lines(block: CodeBlock) -> Iterator[str]:
    """The typed command lines, with continued lines joined and comments removed."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    if block.language == "sh":  # in a shell block, a quoted text may have several lines
        text = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace("\n", " "), text)
        typed = [line for line in text.splitlines() if line.strip()]
    else:
        typed = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    yield from (line for line in typed if not line.startswith("#"))


def parse(words: list[str]) -> None:
    """Parse a command line as ``holdfast`` does, without running it."""
    command = COMMAND_LINE
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if isinstance(command, ExplainGroup):
            words = command.in_order(words)
        command, words = command.commands[words[0]], words[1:]
    if not hasattr(command, "commands"):
        command.make_context("holdfast", words)


def judge(line: str) -> None:
    """Fail if a line can't be typed."""
    for part in re.split(r" (?:&&|\|\|?) ", line):
        words = shlex.split(part, comments=True)
        assert {word.partition("=")[0] for word in words if word.startswith("HOLDFAST_")} <= SETTINGS
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        program, *given = words or ["("]
        match program:
            case "holdfast":
                if "--help" not in given and "--version" not in given:
                    parse([re.sub(r"^(N|[A-Z][A-Z-]+)$", "1", word) for word in given])
            case "make":
                targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.M)
                assert {word for word in given if "=" not in word} <= set(targets)
            case "export":
                assert given
            case "pre-commit":
                assert given == ["install"]
            case _ if program.rpartition("/")[2] in {"python", "python3"}:
                python(given)
            case _:
                assert program in OTHERS or program.startswith("("), f"nobody knows the program {program}"


def python(given: list[str]) -> None:
    """Check the arguments of a Python command: the module or file that it runs exists, and so do its test files."""
    if given[0] == "-c":
        compile(given[1], "console", "exec")
        return
    name = f"{given[1].replace('.', '/')}" if given[0] == "-m" else given[0].removesuffix(".py")
    module = PROJECT / name
    known = given[:2] == ["-m", "pytest"] or module.with_suffix(".py").exists() or (module / "__main__.py").exists()
    assert known, given
    files = [word for word in given[1:] if word.startswith("tests/")]
    assert [file for file in files if not (PROJECT / file).exists()] == []


@pytest.mark.parametrize("block", CONSOLE)
def test_each_line_can_be_typed(block: CodeBlock) -> None:
    typed = list(lines(block))
    assert typed
    for line in typed:
        judge(line)


def quoted(page: Path) -> Iterator[str]:
    """The `holdfast` commands in backticks in running text, except those with placeholders for several words."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for words in re.findall(r"`holdfast ([^`\n]+)`", prose):
        if not re.search(r"[…\[{|]|\.\.\.", words):
            yield words


#: CHANGELOG.md is left out, because it also names commands that were removed.
PRESENT = [pytest.param(page, id=page.relative_to(PROJECT).as_posix()) for page in PAGES if page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", PRESENT)
def test_commands_and_options_in_running_text_exist(page: Path) -> None:
    """Commands and options in running text exist. Running text may omit arguments."""
    for words in quoted(page):
        typed = [re.sub(r"^[A-Z][A-Z-]*$", "1", word) for word in shlex.split(words)]
        try:
            parse(typed)
        except KeyError as unknown:
            pytest.fail(f"`holdfast {words}`: there is no command {unknown}")
        except Exception as failure:
            if "Missing" not in f"{type(failure).__name__} {failure}":
                pytest.fail(f"`holdfast {words}`: {failure}")


@pytest.mark.parametrize("page", PRESENT)
def test_each_setting_on_a_page_exists(page: Path) -> None:
    told = re.sub(r"^```(?:console|text)?\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    named = set(re.findall(r"\bHOLDFAST_[A-Z0-9_]*[A-Z0-9]\b", told))
    groups = {name for name in named if any(each.startswith(f"{name}__") for each in SETTINGS)}
    assert named - groups <= SETTINGS | OTHER_VARIABLES


@pytest.mark.parametrize(
    "line",
    [
        "holdfast apply deploi x",
        "holdfast status --nosuch",
        "holdfast audit",
        "make nosuch",
        "export HOLDFAST_NOSUCH=1",
        "python -m tests.nosuch",
        "python -m pytest tests/nosuch.py",
        "nosuch",
    ],
)
def test_a_line_that_can_not_be_typed_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"deploi|nosuch|Missing|NOSUCH"):
        judge(line)
