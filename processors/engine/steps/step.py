"""The properties that a built-in step declares.

Other modules read these properties instead of checking for the classes of joins, windows and aggregates.

A new join, window or aggregate is a subclass of ``Step`` in a separate module. A user's function is not a ``Step``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from holdfast.processors.engine.steps.in_place import Touch
from holdfast.processors.engine.store_uses import TimeUse

#: The role of a step if a task reads inputs in time order. ``feeds``: it writes state that messages of other inputs
#: look up. ``reads``: it looks up such state.
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
    """How a step uses a store: the kind of the store's values, and whether the step changes them.

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


#: Python's exceptions for a value that an operation can't process. The code of an ``Inlined`` itself raises no other
#: exceptions.
UNFIT = (LookupError, TypeError, AttributeError, ArithmeticError, ValueError)

VALUES, ROWS_WRITTEN, ROWS_READ = StoreUse(), StoreUse(StoreForm.ROWS), StoreUse(StoreForm.ROWS, writes=False)


class Kept(Protocol):
    """The content of a store that only one step uses. The content is either aggregates or windows.

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
        """Describes how the content depends on time, for example a window's length; None if it does not."""

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
    """A step as Python code for the generated loop: statements, and an expression for the result.

    If the code raises an exception of ``UNFIT``, the loop calls the step's ``fail`` with the value and the exception.
    """

    statements: tuple[str, ...]
    result: str = ""


class RowColumns(NamedTuple):
    """The state key under which a step stores a row for each key, and the aggregates that are the row's columns."""

    state_key: str
    aggregates: Mapping[str, Any]


class Step:
    """Base class of built-in steps. The default values of its properties fit most steps."""

    __slots__ = ()

    #: Whether the step can be computed for many messages at once, if numpy computes an aggregation or a window after
    #: it.
    in_runs: ClassVar[bool] = False
    #: The step's role in the order in which inputs are read; None without a role.
    order: ClassVar[Order | None] = None
    #: Whether the step takes out of a group what it added before. Its store then fits stores of other tasks.
    retracts: ClassVar[bool] = False

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
        """The aggregates or windows in a store that only this step uses; None for a step without such a store."""
        return None

    @property
    def row_columns(self) -> RowColumns | None:
        """The aggregates that are the columns of the step's rows; None for a step with other rows."""
        return None

    @property
    def touches(self) -> Touch:
        """Which part of its value the step itself changes. Changes by user functions are not included."""
        return Touch.NOTHING

    @property
    def makes_object(self) -> bool:
        """Whether each result is a new object, whose fields may still contain objects of the value."""
        return False

    @property
    def may_share_parts(self) -> bool:
        """Whether, after the step, a field of the value may contain the same object as another field."""
        return False

    def separate(self, value: Any) -> None:
        """Replaces the object in such a field by a copy. Called if a later step may change objects inside fields."""

    @property
    def stands_in_order(self) -> bool:
        """Whether the version contains the step's position among all steps.

        It must, if the text does not show the position.
        """
        return False

    def inlined(self, value: str, named: Callable[[str, Any], str]) -> Inlined | None:
        """Returns the step as code for the generated loop; None if the loop must call the step.

        ``value`` is the name of the variable with the value. ``named`` returns a name for an object to which the code
        refers.
        """
        return None

    @property
    def outbox(self) -> str:
        """The name of the outbox where the step's results wait for the next commit.

        Empty for a step without an outbox.
        """
        return ""

    def describe(self) -> str:
        """Describes the step in one line of text.

        If this text changes, the version of the processor changes. Empty if the user function alone defines the
        behaviour.
        """
        return ""
