"""The list of drills: each is a function of an exercise, registered by its number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.drills.exercise import Exercise
from tests.parts.operated import DEFINITION

Act = Callable[[Exercise], None]


@dataclass(frozen=True, slots=True)
class Drill:
    """A drill; the ``quick`` ones run in `make test`."""

    number: int
    title: str
    act: Act
    quick: bool
    #: Whether it has a home of its own, the state on a small disk; else it shares the others' home.
    alone: bool
    #: Whether it has a home of its own, with a project's module for Dagster.
    project: bool
    #: The text of the module that defines its processor, with ``{group}``.
    definition: str

    @property
    def name(self) -> str:
        """The name of its processor."""
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
    """Register a drill."""

    def register(act: Act) -> Act:
        assert number not in DRILLS
        DRILLS[number] = Drill(number, title, act, quick, alone, project, definition)
        return act

    return register
