"""Generates the reference of the command line from the program's own commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from holdfast.orchestration.cli import app
from holdfast.orchestration.commands.lazy import loaded

PROGRAM = "holdfast"
#: Groups of commands that have a subcommand for each verb, with the same arguments in each group.
BY_PLAN = ("plan", "explain", "apply")


#: Commands that read or send records and rows.
OF_DATA = ("produce", "consume", "query", "snapshot")
#: Options that have the same meaning in every command.
EVERYWHERE = ("--json", "--who")


@cache
def _program() -> Any:
    """The program with all of its commands; importing them takes seconds."""
    return loaded(app)


def commands_page() -> str:
    """Return the Markdown page of commands without subcommands."""
    tree = _program().commands
    lines = [
        "# Commands",
        "",
        "Every command of the program `holdfast` that stands alone, with its arguments and options.",
        "[Commands, assets and jobs](../commands.md) says what each one is for.",
        "[Data](commands-data.md), [every day](commands-daily.md), [groups](commands-groups.md) and",
        "[verbs](commands-verbs.md) have pages of their own.",
        "",
        "```console",
        "$ holdfast --help",
        "$ holdfast status --json",
        "```",
        "",
        "With `--json` a command prints one JSON document, also for an error. `--who` is the name that the registry",
        "records for a change; it is the current user by default. Both are named only where a command takes them.",
        "",
        "## holdfast",
        "",
        *_described(_program(), PROGRAM),
    ]
    for name, command in tree.items():
        if not hasattr(command, "commands") and not _asks(command) and name not in OF_DATA:
            lines += ["", f"## {PROGRAM} {name}", "", *_described(command, f"{PROGRAM} {name}")]
    return "\n".join(lines) + "\n"


def groups_page() -> str:
    """Return the Markdown page of commands with subcommands, except the verbs."""
    tree = _program().commands
    verbs = set(tree["plan"].commands)
    lines = [
        "# Commands: groups",
        "",
        "The commands of `holdfast` that have commands below them. `holdfast plan`, `holdfast explain` and",
        "`holdfast apply` also take each of [the verbs](commands-verbs.md).",
        "",
        "```console",
        "$ holdfast incidents list --open",
        "```",
    ]
    for name, command in tree.items():
        if not hasattr(command, "commands"):
            continue
        lines += ["", f"## {PROGRAM} {name}", "", *_described(command, f"{PROGRAM} {name}")]
        for below, each in command.commands.items():
            if name not in BY_PLAN or below not in verbs:
                lines += ["", f"### {PROGRAM} {name} {below}", "", *_described(each, f"{PROGRAM} {name} {below}")]
    return "\n".join(lines) + "\n"


def verbs_page() -> str:
    """Return the Markdown page of the verbs of ``plan``, ``explain`` and ``apply``."""
    tree = _program().commands
    shared = {tuple(each.opts) for each in _options(tree["plan"].commands["deploy"])}
    extra = [each for each in _options(tree["apply"].commands["deploy"]) if tuple(each.opts) not in shared]
    lines = [
        "# Commands: the verbs",
        "",
        "Each verb is a command of `holdfast plan`, `holdfast explain` and `holdfast apply`, with the same arguments.",
        "[Verbs](../verbs.md) says what each one does to a processor.",
        "",
        "```console",
        "$ holdfast plan clear fleet --key N14228",
        "$ holdfast explain clear fleet --key N14228",
        "```",
        "",
        "`holdfast apply` takes these options with every verb:",
        "",
        *_table(extra),
    ]
    for name, command in tree["plan"].commands.items():
        lines += ["", f"## {name}", "", *_described(command, f"{PROGRAM} plan {name}")]
    return "\n".join(lines) + "\n"


def data_page() -> str:
    """Return the Markdown page of commands that read or send records, state and rows."""
    lines = [
        "# Commands: data",
        "",
        "These commands send and print records of topics, entries of stores, and rows of tables.",
        "",
        "```console",
        "$ holdfast consume placed -n 5",
        "```",
    ]
    for name, command in _program().commands.items():
        if name in OF_DATA:
            lines += ["", f"## {PROGRAM} {name}", "", *_described(command, f"{PROGRAM} {name}")]
    return "\n".join(lines) + "\n"


def daily_page() -> str:
    """Return the Markdown page of the commands that show a verb's plan, ask for confirmation, and apply the plan."""
    lines = [
        "# Commands: every day",
        "",
        "Each of these commands shows the plan of a verb, asks, and applies exactly this plan.",
        "[The verbs of every day](../verbs.md#the-verbs-of-every-day) says what each one does.",
        "",
        "```console",
        "$ holdfast deploy fleet",
        "```",
    ]
    for name, command in _program().commands.items():
        if _asks(command):
            lines += ["", f"## {PROGRAM} {name}", "", *_described(command, f"{PROGRAM} {name}")]
    return "\n".join(lines) + "\n"


def _described(command: Any, words: str) -> Iterator[str]:
    """A command's description, its usage line, and its arguments and options."""
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    shown = [each for each in parameters if each.opts[-1] not in EVERYWHERE]
    yield " ".join((command.help or "").split())
    if not hasattr(command, "commands"):
        pieces = [piece for each in parameters for piece in each.get_usage_pieces(_context())]
        everywhere = [f"[{each.opts[-1]}]" for each in parameters if each.opts[-1] in EVERYWHERE]
        options = ["[OPTIONS]"] if any(each.param_type_name == "option" for each in shown) else []
        yield from ("", f"`{' '.join([words, *options, *pieces, *everywhere])}`")
    if shown:
        yield from ("", *_table(shown))


def _asks(command: Any) -> bool:
    """Whether a command asks for confirmation before it applies a verb."""
    return not hasattr(command, "commands") and any("--yes" in each.opts for each in command.params)


def _options(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option"]


def _table(parameters: Iterable[Any]) -> Iterator[str]:
    yield "| argument or option | meaning |"
    yield "|---|---|"
    for each in parameters:
        names, meaning = each.get_help_record(_context()) or (each.name, "")
        yield f"| `{_cell(names)}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _context() -> Any:
    made = _program()
    return made.context_class(made, info_name=PROGRAM)
