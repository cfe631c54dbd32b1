"""The list of all drills (planned faults and repairs).

The decorator ``drill`` adds a function to the list, under a number. The function gets an exercise (a running
processor).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.drills.exercise import Exercise
from tests.parts.operated import DEFINITION

Act = Callable[[Exercise], None]


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill. Drills with ``quick`` run in `make test`."""

    number: int
    title: str
    act: Act
    quick: bool
    #: Whether the drill has a separate home folder whose state is on a small disk. Otherwise it shares the common home.
    alone: bool
    #: Whether the drill has a separate home folder, with a project's own module for Dagster.
    project: bool
    #: The source of the module that defines the drill's processor, with ``{group}``.
    definition: str

    @property
    def name(self) -> str:
        """The name of the drill's processor."""
        return self.act.__name__.replace("_", "-")


DRILLS: dict[int, Drill] = {}


def drill(
    number: int,
    title: str,
    *,
    quick: bool = False,
    alone: bool = False,
    project: bool = False,
    definition: str = DEFINITION,
) -> Callable[[Act], Act]:
    """A decorator that registers a function as a drill."""

    def register(act: Act) -> Act:
        assert number not in DRILLS
        DRILLS[number] = Drill(number, title, act, quick, alone, project, definition)
        return act

    return register
