"""The properties that a step of the engine declares.

General modules read them, and know no join, window or aggregate by name.

A new join, window or aggregate derives from ``Step``, in a separate module. A function of a user is no ``Step``: it
runs unchanged, and its store holds values of users' functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from holdfast.processors.engine.steps.in_place import Touch
from holdfast.processors.engine.store_uses import TimeUse

#: The role of a step in the order of reading: "feeds" writes state that other inputs of its task look up; "reads" looks
#: it up.
Order = Literal["feeds", "reads"]


class StoreForm(Enum):
    """Whose values a store has."""

    #: Values of users' functions. Several steps may share the store.
    VALUES = "values"
    #: Values of a single step, in the step's own form.
    OWN = "own"
    #: The rows of a table: one step writes them, others read them.
    ROWS = "rows"
    #: The records of the sides of one join.
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class StoreUse:
    """How a step uses its store.

    Attributes:
        form: Whose values the store has.
        writes: Whether the step changes them.
        join: The declaration of the join that the store belongs to; None for no join.
        drops_known: Whether the step drops a message that the store already contains.
    """

    form: StoreForm = StoreForm.VALUES
    writes: bool = True
    join: Any = None
    drops_known: bool = False


#: What Python raises for values that an operation does not take; the code of ``Inlined`` raises nothing else by itself.
UNFIT = (LookupError, TypeError, AttributeError, ArithmeticError, ValueError)

VALUES, ROWS_WRITTEN, ROWS_READ = StoreUse(), StoreUse(StoreForm.ROWS), StoreUse(StoreForm.ROWS, writes=False)


class Kept(Protocol):
    """The content of a built-in step's store, which no other step uses: aggregates, or windows.

    Attributes:
        store_kind: The kind of its store.
        called: The name of the content in errors.
    """

    store_kind: ClassVar[str]
    called: ClassVar[str]

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""

    @property
    def use(self) -> TimeUse | None:
        """The content about time; None for nothing."""

    def lines(self) -> tuple[str, ...]:
        """The definition of the content, in lines; other lines mean another definition."""


class Window(Kept, Protocol):
    """The declaration of windows: by time, or by counts of messages."""

    @property
    def __name__(self) -> str:
        """The step's name in errors."""

    @property
    def overlaps(self) -> bool:
        """Whether a message may produce several results."""

    @property
    def asks_headers(self) -> bool:
        """Whether the window calls functions that get headers."""


class Inlined(NamedTuple):
    """A step as code of the generated loop: statements, and the expression of its result.

    The code may raise the errors of ``UNFIT``; then the step's ``fail`` is called with the value and the error.
    """

    statements: tuple[str, ...]
    result: str = ""


class Step:
    """The function of a step of the engine; each property has the default of most steps."""

    __slots__ = ()

    #: Whether the step can be computed for a run of messages before an aggregation or a window by columns.
    in_runs: ClassVar[bool] = False
    #: The step's role for the order of reading; None for no role.
    order: ClassVar[Order | None] = None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        return ()

    @property
    def store_use(self) -> StoreUse:
        """How the step uses its store, if it has one."""
        return VALUES

    @property
    def kept(self) -> Kept | None:
        """The content of the step's own kind of store; None for a step without such a store."""
        return None

    @property
    def touches(self) -> Touch:
        """What the step changes in its value, besides what its functions change."""
        return Touch.NOTHING

    @property
    def makes_object(self) -> bool:
        """Whether each result is a new object, which shares nothing with the value but what is inside of its fields."""
        return False

    @property
    def may_share_parts(self) -> bool:
        """Whether a field of the value may become the same object as another field, or as a part of it."""
        return False

    def separate(self, value: Any) -> None:
        """Gives such a field an object of its own; called if a later step may change what is inside of fields."""

    @property
    def stands_in_order(self) -> bool:
        """Whether the version has the step's place among all steps, because no source of a function shows it."""
        return False

    def inlined(self, value: str, named: Callable[[str, Any], str]) -> Inlined | None:
        """The step's code for a value of this name, instead of a call; None for a step that is called.

        ``named`` gives a name for an object.
        """
        return None

    def describe(self) -> str:
        """The rule of the step in one line.

        A change of it changes the version. Empty if the functions define the step.
        """
        return ""
