"""The command of each verb (operation of the lifecycle) is generated.

The command has the options of the verb and those of every apply (execution of a plan). It passes each option to the
right function.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from holdfast.orchestration.cli import app as command_line
from holdfast.orchestration.commands.changes import verbs
from holdfast.orchestration.commands.changes.requests import VERBS
from holdfast.orchestration.commands.changes.verbs import stage_name
from holdfast.orchestration.commands.lazy import loaded
from holdfast.processors.lifecycle.plans.requests import Deploy, Request
from holdfast.processors.lifecycle.plans.stages import Stage

ACTIONS = {"plan": verbs._plan, "explain": verbs._explain, "apply": verbs._apply}


def names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


ALL = dict(commands(loaded(command_line)))


def test_options_go_to_the_verb_and_to_the_action() -> None:
    seen: list[Any] = []

    def verb(processor: str, drop: Annotated[list[str] | None, typer.Option()] = None) -> Request:
        return Deploy(processor, 1.0, tuple(drop or ()))

    def action(request: Request, *, yes: Annotated[bool, typer.Option("--yes")] = False, who: str = "me") -> None:
        seen.append((request, yes, who))

    app = typer.Typer()
    app.command()(verbs.joined_command(verb, action))
    result = CliRunner().invoke(app, ["fleet", "--drop", "a", "--drop", "b", "--yes"])
    assert result.exit_code == 0, result.output
    assert seen == [(Deploy("fleet", 1.0, ("a", "b")), True, "me")]


@pytest.mark.parametrize("group", ACTIONS)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_its_own_options_and_those_of_the_group(group: str, verb: str) -> None:
    command = ALL[group, verb]
    expected = [*names(VERBS[verb]), *names(ACTIONS[group])[1:]]
    assert sorted(each.name for each in command.params) == sorted(expected)
    assert command.help == inspect.cleandoc(VERBS[verb].__doc__ or "")


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_and_every_option_has_a_help_text(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help
    assert [each.name for each in command.params if not getattr(each, "help", None)] == []


def test_a_table_of_a_plan_names_its_stages_in_words() -> None:
    names = [re.sub(r"[^A-Z]", "", kind.__name__) for kind in get_args(Stage)]
    shown = [stage_name(kind) for kind in get_args(Stage)]
    assert {"make release", "prove version", "run processor"} <= set(shown)
    assert [len(words.split()) for words in shown] == [len(capitals) for capitals in names]
    assert all(words == words.lower() for words in shown)
