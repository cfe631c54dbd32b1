"""The step ``sdf.print()``, which prints values during development."""

# tidy: allow-crumb because the rules of the printed text are separate from the other steps

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pprint import pprint
from typing import Any

from holdfast.processors.engine.steps.step import Step

_NAMES = ("value", "key", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class Printed(Step):
    """Prints a dict with the message's value.

    ``pretty`` prints long dicts over several lines; ``metadata`` adds key, timestamp and headers.
    """

    pretty: bool
    metadata: bool

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Returns Python's ``print``, which the version hash contains. The step calls no user function."""
        return (print,)

    def describe(self) -> str:
        """Returns the options as text. The text is empty for the defaults, so that old version hashes stay valid."""
        return "" if self.pretty and not self.metadata else f"print: {self.pretty}, {self.metadata}"

    def __call__(self, *given: Any) -> None:
        """Prints the value; with ``metadata``, also key, timestamp and headers."""
        shown = dict(zip(_NAMES, given, strict=False))
        if self.pretty:
            pprint(shown, indent=2, sort_dicts=False)
        else:
            print(shown)
