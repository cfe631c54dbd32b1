"""What a step of the engine says of itself. General modules read this, and know no join, window or aggregate by name.

A join, window or aggregate that is new derives from ``Step``, in a module of its own. A function of a user is no
``Step``: it runs as it is, and its store holds values of users' functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, Protocol

from holdfast.processors.engine.store_uses import TimeUse

#: A step of the order of reading: it makes what other inputs of its task look up, or looks that up.
Order = Literal["feeds", "reads"]


class StoreForm(Enum):
    """Whose values a store has."""

    #: Values of users' functions. Steps may share it.
    VALUES = "values"
    #: Values of one step, in a form of its own.
    OWN = "own"
    #: The rows of a table: one step writes them, others read them.
    ROWS = "rows"
    #: What one join keeps of its sides.
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class StoreUse:
    """How a step uses its store.

    Attributes:
        form: Whose values the store has.
        writes: Whether the step changes them.
        join: The declaration of the join that the store belongs to; None for no join.
        drops_known: Whether a message that the store knows goes no further.
    """

    form: StoreForm = StoreForm.VALUES
    writes: bool = True
    join: Any = None
    drops_known: bool = False


VALUES, ROWS_WRITTEN, ROWS_READ = StoreUse(), StoreUse(StoreForm.ROWS), StoreUse(StoreForm.ROWS, writes=False)


class Kept(Protocol):
    """What a built-in step keeps in a store that no other step uses: aggregates, or windows.

    Attributes:
        store_kind: The kind of its store.
        called: What it is, in errors.
    """

    store_kind: ClassVar[str]
    called: ClassVar[str]

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""

    @property
    def use(self) -> TimeUse | None:
        """What it keeps about time; None for nothing."""

    def lines(self) -> tuple[str, ...]:
        """What it keeps, in lines; other lines are another definition."""


class Window(Kept, Protocol):
    """The declaration of windows: by time, or by counts of messages."""

    @property
    def __name__(self) -> str:
        """The step's name in errors."""

    @property
    def overlaps(self) -> bool:
        """Whether a message may make several results."""

    @property
    def asks_headers(self) -> bool:
        """Whether it asks functions that get headers."""


class Step:
    """The function of a step of the engine; each property has the answer of most steps."""

    __slots__ = ()

    #: What it is for the order of reading; None for nothing.
    order: ClassVar[Order | None] = None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        return ()

    @property
    def store_use(self) -> StoreUse:
        """How it uses its store, if it has one."""
        return VALUES

    @property
    def kept(self) -> Kept | None:
        """What it keeps in a store of its own kind; None for a step without such a store."""
        return None

    def describe(self) -> str:
        """The rule of the step in a line; another rule is another version. Empty if its functions tell it."""
        return ""
