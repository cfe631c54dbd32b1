"""Generates the reference of errors and checks from the classes, their raise sites, and the asset graph."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from holdfast.assets.checks.connectors import SAYS, SINK_WRITES, SOURCE_ALIVE
from holdfast.assets.factory import IMPORTABLE
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import load_settings
from holdfast.orchestration.definitions import build_definitions
from tests.mechanics.trees import nodes_of, tree_of
from tests.tidy.test_words import FOLDERS, PROJECT, error_classes, linked, literal, name_of

#: Maximum number of suggested actions shown for an error. The error message itself names the right action.
ACTIONS_MAX = 3
#: The parts of the product that raise errors, with the folders of their modules. The first matching folder counts.
PARTS = {
    "Declaring and running a processor": (
        "processors/application",
        "processors/client",
        "processors/engine",
    ),
    "Verbs, deployments and recovery": ("processors/lifecycle", "processors/proof", "orchestration/verbs"),
    "Audits, snapshots and the warehouse": (
        "processors/audits",
        "processors/snapshots",
        "assets/spark",
        "infra/warehouse",
        "infra/spark",
    ),
    "Kafka": ("infra/kafka",),
    "The command line, Dagster and this machine": ("",),
}
#: Matches the fixed words of an action, without inserted values. An action with fewer than two words is not shown.
_SAYS = re.compile(r"\w+")


@cache
def _rows_of_errors() -> Mapping[str, list[str]]:
    """For each part of the product, a table row for each error: its cause, its exit code, and its actions."""
    modules = [path for folder in FOLDERS for path in sorted((PROJECT / folder).rglob("*.py")) if not linked(path)]
    trees = {path: tree_of(path) for path in modules}
    names = error_classes(trees.values())
    actions = _actions(trees, names)
    rows: dict[str, list[str]] = defaultdict(list)
    for error, module in sorted(_errors(trees, names), key=lambda found: found[0].__name__):
        when = " ".join((error.__doc__ or "").split("\n\n")[0].replace("``", "`").split())
        todo = " · ".join(sorted(actions[error.__name__])[:ACTIONS_MAX]) or "as the message says"
        part = next(part for part, folders in PARTS.items() if module.startswith(folders))
        rows[part].append(f"| `{error.__name__}` | {error.exit_code} | {_cell(when)} | {_cell(todo)} |")
    return rows


def _tables(parts: Iterable[str]) -> list[str]:
    rows = _rows_of_errors()
    lines = []
    for part in parts:
        lines += ["", f"## {part}", "", "| error | exit code | when | what to do |", "|---|--:|---|---|", *rows[part]]
    return lines


def errors_page() -> str:
    """Return the Markdown page of errors that declaring or running a processor can raise."""
    lines = [
        "# Errors",
        "",
        "Errors that a processor raises on purpose: when, the exit code of the process that they end, and what to do.",
        "An error's own message has the values and the one action that fits; `…` stands for a value.",
        "The [errors of operating](errors-operating.md) are on a page of their own.",
        "",
        "```text",
        "ExtraMissing: The library sqlalchemy is not installed. Deployments, plans and incidents need it.",
        "What to do: Run `pip install 'holdfast[operate]'`.",
        "```",
        "",
        "All of them are subclasses of `HoldfastError`, with `message`, `action`, `cause` and `fields`.",
        "With `--json` a command prints them in one object. [Verbs](../verbs.md#from-the-command-line) has exit codes.",
        *_tables(list(PARTS)[:1]),
    ]
    return "\n".join(lines) + "\n"


def operating_errors_page() -> str:
    """Return the Markdown page of all other errors of the product."""
    lines = [
        "# Errors of operating",
        "",
        "The errors of verbs, recovery, audits, the warehouse, Kafka, and the command line. The",
        "[errors of a processor](errors.md) are on another page, which says how to read these tables.",
        "",
        "```text",
        "ExtraMissing: The library sqlalchemy is not installed. Deployments, plans and incidents need it.",
        "What to do: Run `pip install 'holdfast[operate]'`.",
        "```",
        *_tables(list(PARTS)[1:]),
    ]
    return "\n".join(lines) + "\n"


def checks_page() -> str:
    """Return the Markdown page of every check in the asset graph, with its description and its runbook section."""
    definitions = build_definitions(load_settings())
    graph = definitions.resolve_asset_graph()
    found: dict[str, tuple[set[str], str, bool]] = {}
    for node in graph.asset_nodes:
        for key in node.check_keys:
            spec = graph.get_check_spec(key)
            layers, text, blocks = found.get(key.name, (set(), spec.description or "", False))
            found[key.name] = (layers | {node.key.path[0]}, text, blocks or spec.blocking)
    lines = [
        "# Checks",
        "",
        "Every asset check in Dagster: its assets, what passes, and whether a failure blocks the assets behind it. The",
        "[runbook](../runbook.md) has a section for each, with the words of its failures and the action.",
        "",
        "```console",
        "$ holdfast status",
        "```",
        "",
        "| check | assets | passes when | blocks |",
        "|---|---|---|---|",
    ]
    for name, (layers, text, blocks) in sorted(found.items()):
        at = f"[`{name}`](../runbook.md#{name})"
        lines.append(f"| {at} | {', '.join(sorted(layers))} | {_cell(text)} | {'yes' if blocks else 'no'} |")
    for name, assets in ((SINK_WRITES, "sinks of a processor"), (SOURCE_ALIVE, "sources of a processor")):
        lines.append(f"| [`{name}`](../connectors.md#{name}) | {assets} | {_cell(SAYS[name])} | no |")
    at = f"[`{IMPORTABLE}`](../runbook.md#{IMPORTABLE})"
    lines.append(f"| {at} | processors that can't be imported | Python can import the definition. | no |")
    return "\n".join(lines) + "\n"


def _errors(trees: Mapping[Path, ast.Module], names: set[str]) -> Iterator[tuple[type[HoldfastError], str]]:
    """The error classes of the product, with the paths of their modules."""
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in names and not node.name.startswith("_"):
                module = path.relative_to(PROJECT).with_suffix("").as_posix()
                made = getattr(importlib.import_module("holdfast." + module.replace("/", ".")), node.name)
                if issubclass(made, HoldfastError):
                    yield made, module


def _actions(trees: Mapping[Path, ast.Module], names: set[str]) -> dict[str, set[str]]:
    """The texts of ``action=`` at the raise sites of each error; ``…`` stands for an inserted value."""
    found: dict[str, set[str]] = defaultdict(set)
    for tree in trees.values():
        for node in nodes_of(tree):
            if isinstance(node, ast.Call) and name_of(node.func) in names:
                for each in node.keywords:
                    if each.arg == "action":
                        texts = (text.replace("VALUE", "…").strip() for text in literal(each.value))
                        found[name_of(node.func)].update(text for text in texts if len(_SAYS.findall(text)) > 1)
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
