"""The ``--json`` output of each command has a schema, and each exit code is in the documented table."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.infra.exit_codes import EXIT_CODES
from holdfast.orchestration.cli import app, main
from holdfast.orchestration.commands.json_documents import ANSWERS, answer_of
from holdfast.orchestration.commands.lazy import loaded
from tests.mechanics.trees import nodes_of, tree_of

PROJECT = Path(__file__).resolve().parents[4]


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


WITH_JSON = [words for words, command in leaves(loaded(app)) if any(each.name == "as_json" for each in command.params)]
#: Commands without a JSON document: they run a server, follow a file, or print a schema or nothing.
WITHOUT_JSON = {"demo", "webserver", "daemon", "logs", "run", "schema"}


def test_every_command_that_prints_facts_has_json_and_every_json_a_schema() -> None:
    every = {words for words, _ in leaves(loaded(app))}
    assert every - set(WITH_JSON) == WITHOUT_JSON
    assert [words for words in WITH_JSON if answer_of(words) is None] == []
    groups = {"error", "plan", "explain", "apply", "status --sizes"}
    assert [words for words in ANSWERS if words not in WITH_JSON and words not in groups] == []


@pytest.mark.parametrize("words", ANSWERS)
def test_a_schema_is_printed_for_every_answer(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--", *words.split()]) == 0
    schema = json.loads(capfd.readouterr().out)
    assert schema["title"] == f"holdfast {words}"
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_a_command_without_json_has_no_schema(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "logs"]) == 64
    assert "prints no JSON" in capfd.readouterr().err
    assert main(["schema"]) == 0
    assert capfd.readouterr().out.splitlines() == list(ANSWERS)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("status", 0),
        ("status --sizes", 0),
        ("incidents list", 0),
        ("apply list", 0),
        ("orphans", 69),  # no broker is configured; the error is a JSON document, too
        ("top", 0),
        ("down", 0),
        ("spark stop", 0),
        ("spark status", 1),
        ("version", 0),
    ],
)
def test_what_is_printed_fits_its_schema(
    words: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", raising=False)
    assert main([*words.split(), "--json"]) == code
    printed = json.loads(capfd.readouterr().out)
    failed = isinstance(printed, dict) and "error" in printed
    (ANSWERS["error"] if failed else ANSWERS[words]).validate_python(printed, strict=True)


@pytest.mark.parametrize(
    ("words", "said", "action"),
    [
        ("scale fleet 0", "Invalid value for 'workers'", "Read `holdfast scale --help`."),
        ("statsu", "Did you mean 'status'", "Read `holdfast --help`."),
        ("query fleet", "The keys are given in 0 ways", "Give keys, or one of `--prefix` and `--all`."),
    ],
)
def test_a_wrong_command_line_is_an_answer_too(
    words: str, said: str, action: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--json"]) == 64
    printed = json.loads(capfd.readouterr().out)
    ANSWERS["error"].validate_python(printed, strict=True)
    assert said in printed["error"]["message"]
    assert printed["error"]["action"] == action


@pytest.mark.parametrize(
    ("words", "given", "meaning"),
    [
        ("demo --months 13", "13", "2 have 51,955 flights, 12 have 336,776"),
        ("demo --months x", "'x'", "2 have 51,955 flights, 12 have 336,776"),
        ("demo --flights-per-second 0", "0", "Flights to send per second"),
        ("scale fleet 0", "0", "Number of workers"),
        ("logs fleet --lines many", "'many'", "Number of lines"),
    ],
)
def test_a_value_that_does_not_fit_is_shown_with_what_it_means(
    words: str, given: str, meaning: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split()]) == 64
    printed = " ".join(re.sub(r"[│╭╰─╮╯]", " ", capfd.readouterr().err).split())
    _, _, said = printed.partition("Invalid value for ")
    assert given in said
    assert meaning in said


def test_another_shape_does_not_fit() -> None:
    with pytest.raises(ValueError, match="version"):
        ANSWERS["version"].validate_python({"version": 1}, strict=True)
    ANSWERS["version"].validate_python({"version": holdfast.__version__, "new": "field"}, strict=True)


def test_every_exit_code_is_in_the_table_of_the_page() -> None:
    page = (PROJECT / "docs" / "commands.md").read_text()
    section = page.partition("## Exit codes")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", section, re.MULTILINE))
    assert rows == {str(code): words for code, words in EXIT_CODES.items()}


def test_only_one_module_has_the_numbers() -> None:
    """Other modules use the names of exit codes. The only number that they may use is 1."""
    found = []
    for folder in ("infra", "processors", "assets", "orchestration"):
        for path in (PROJECT / folder).rglob("*.py"):
            for node in nodes_of(tree_of(path)):
                named = isinstance(node, ast.Assign) and any(
                    isinstance(each, ast.Name) and each.id == "exit_code" for each in node.targets
                )
                called = node.func if isinstance(node, ast.Call) else None
                ends = isinstance(called, ast.Attribute) and ast.unparse(called) == "typer.Exit"
                values = [node.value] if named else node.args if ends else []  # type: ignore[attr-defined]
                found += [
                    f"{path.name}:{node.lineno}"
                    for each in values
                    if isinstance(each, ast.Constant) and each.value != 1
                ]  # type: ignore[attr-defined]
    assert found == []
