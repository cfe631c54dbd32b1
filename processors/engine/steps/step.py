"""The properties that a built-in step declares.

General modules read these properties, so they need not know the classes of joins, windows and aggregates.

A new join, window or aggregate is a subclass of ``Step`` in a separate module. A user's function is not a ``Step``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from holdfast.processors.engine.steps.in_place import Touch
from holdfast.processors.engine.store_uses import TimeUse

#: The role of a step in the order in which inputs are read.
#: A step that ``feeds`` writes state that other inputs of the task look up. A step that ``reads`` looks such state up.
Order = Literal["feeds", "reads"]


class StoreForm(Enum):
    """The kind of values in a store."""

    #: Values of user functions. Several steps may share the store.
    VALUES = "values"
    #: Values of a single built-in step, in this step's own format.
    OWN = "own"
    #: The rows of a table. One step writes the rows, other steps read them.
    ROWS = "rows"
    #: The stored messages of both sides of one join.
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class StoreUse:
    """The use of a store by a step: the kind of its values, and whether the step changes them.

    Attributes:
        form: The kind of values in the store.
        writes: Whether the step changes the values.
        join: The declaration of the join that the store belongs to; None without a join.
        drops_known: Whether the step drops a message that is already in the store, as ``drop_duplicates`` does.
    """

    form: StoreForm = StoreForm.VALUES
    writes: bool = True
    join: Any = None
    drops_known: bool = False


#: What Python raises for values that an operation does not take; the code of ``Inlined`` raises nothing else by itself.
UNFIT = (LookupError, TypeError, AttributeError, ArithmeticError, ValueError)

VALUES, ROWS_WRITTEN, ROWS_READ = StoreUse(), StoreUse(StoreForm.ROWS), StoreUse(StoreForm.ROWS, writes=False)


class Kept(Protocol):
    """The content of a store that only one built-in step uses: aggregates, or windows.

    Attributes:
        store_kind: The kind of the store, for example ``aggregation``.
        called: The name of the content in errors, for example ``a window``.
    """

    store_kind: ClassVar[str]
    called: ClassVar[str]

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""

    @property
    def use(self) -> TimeUse | None:
        """A description of how the content depends on time; None if it does not."""

    def lines(self) -> tuple[str, ...]:
        """Describes the definition of the content in lines of text. If a line changes, the definition has changed."""


class Window(Kept, Protocol):
    """The declaration of windows: by time, or by number of messages."""

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
    """Base class of built-in steps. Each property has the value that most steps need."""

    __slots__ = ()

    #: Whether the step can be computed for a run of messages before an aggregation or a window by columns.
    in_runs: ClassVar[bool] = False
    #: The step's role in the order in which inputs are read; None without a role.
    order: ClassVar[Order | None] = None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        return ()

    @property
    def store_use(self) -> StoreUse:
        """The kind of values in the step's store, and whether the step changes them."""
        return VALUES

    @property
    def kept(self) -> Kept | None:
        """The content of a store that only this step uses; None for a step without such a store."""
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

    @property
    def outbox(self) -> str:
        """The name of the step's box of results that wait for the next commit; empty for a step without one."""
        return ""

    def describe(self) -> str:
        """Describes the step in one line of text.

        If this text changes, the version of the processor changes. Empty if the step's behaviour is its user function.
        """
        return ""
