"""``sdf.print()``: shows values while a processor is developed."""

# tidy: allow-crumb because what is printed is a rule of its own

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pprint import pprint
from typing import Any

from holdfast.processors.engine.steps.step import Step

_NAMES = ("value", "key", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class Printed(Step):
    """Prints an object of what a step gets; ``pretty``: over several lines where it is long."""

    pretty: bool
    metadata: bool

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Python's own, which changes nothing."""
        return (print,)

    def describe(self) -> str:
        """Empty without a choice: versions of processors that print are those of former releases."""
        return "" if self.pretty and not self.metadata else f"print: {self.pretty}, {self.metadata}"

    def __call__(self, *given: Any) -> None:
        """Prints the value, and with metadata the rest."""
        shown = dict(zip(_NAMES, given, strict=False))
        if self.pretty:
            pprint(shown, indent=2, sort_dicts=False)
        else:
            print(shown)
