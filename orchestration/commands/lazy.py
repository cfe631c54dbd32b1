"""Lazy commands: the module of a command is imported only when the command runs, so ``holdfast --help`` is fast.

A lazy command is declared by its name, one line of help, and the place of its code, ``module:attribute``. The attribute
is a function, a ``typer.Typer``, or a function named ``make_…`` that returns a function or a ``typer.Typer``.

Invariants:
    - The real command is imported only when it runs, prints its ``--help``, or completes its options.
    - The declared line of help equals the help of the real command;
      ``tests/unit/orchestration/commands/test_lazy_commands.py`` compares both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class Lazy:
    """Declaration of a lazy command or group: its name, place (``module:attribute``) and one line of help.

    ``foreign_options`` is True if the command passes unknown options, including ``--help``, to another parser.
    """

    name: str
    place: str
    help: str
    foreign_options: bool = False


class LazyCommand(TyperCommand):
    """A placeholder for a command whose module is not imported yet; ``--help`` can list it."""

    def __init__(self, lazy: Lazy) -> None:
        super().__init__(name=lazy.name, help=lazy.help)
        self.lazy = lazy

    @cached_property
    def loaded(self) -> TyperCommand | TyperGroup:
        """The real command; the first access imports its module."""
        module, _, attribute = self.lazy.place.partition(":")
        return _command_of(self.lazy, attribute, getattr(import_module(module), attribute))

    @property
    def commands(self) -> Mapping[str, Any]:
        """The subcommands if this is a group; raises AttributeError for a single command, as click expects."""
        return self.loaded.commands  # type: ignore[union-attr]  # the AttributeError of a single command is meant

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The click context of the real command, so that parsing, help and completion use the real command."""
        return self.loaded.make_context(info_name, args, parent, **extra)


def lazy_group(*lazies: Lazy) -> type[TyperGroup]:
    """A class for ``typer.Typer(cls=...)`` that lists these lazy commands after the normally registered commands."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for each in lazies:
                self.add_command(LazyCommand(each))

    return LazyGroup


def loaded(app: typer.Typer) -> TyperGroup:
    """The whole command line with all lazy commands imported, for documentation and tests that read every option."""
    group = typer.main.get_group(app)
    for name, command in group.commands.items():
        if isinstance(command, LazyCommand):
            group.add_command(command.loaded, name)
    return group


def _command_of(lazy: Lazy, attribute: str, found: Any) -> TyperCommand | TyperGroup:
    if attribute.startswith("make_"):
        found = found()
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
        command.name = lazy.name
    else:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        passed = {"allow_extra_args": True, "ignore_unknown_options": True} if lazy.foreign_options else None
        app.command(lazy.name, context_settings=passed, add_help_option=not lazy.foreign_options)(found)
        command = typer.main.get_command(app)
    return command  # type: ignore[no-any-return]  # typer's own class for it is private
