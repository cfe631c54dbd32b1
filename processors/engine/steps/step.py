"""The properties that a built-in step declares about itself, for example its store and whether it changes values.

Other modules read these properties instead of checking for the classes of joins, windows and aggregates. A new join,
window or aggregate is a subclass of ``Step`` in a separate module. A user's function is not a ``Step``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from holdfast.processors.engine.steps.in_place import Touch
from holdfast.processors.engine.store_uses import TimeUse

#: The role of a step if a task reads several inputs in time order. ``feeds``: the step writes state that messages of
#: other inputs look up. ``reads``: the step looks up this state.
Order = Literal["feeds", "reads"]


class StoreForm(Enum):
    """The kind of values in a store."""

    #: The store has values of user functions. Several steps may share the store.
    VALUES = "values"
    #: The store has values of a single built-in step, in this step's own format.
    OWN = "own"
    #: The store has the rows of a table. One step writes the rows, other steps read them.
    ROWS = "rows"
    #: The store has the messages of both sides of one join.
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


#: The exceptions that Python raises if an operation can't process a value. The generated code of a step (``Inlined``)
#: raises no other exceptions.
UNFIT = (LookupError, TypeError, AttributeError, ArithmeticError, ValueError)

VALUES, ROWS_WRITTEN, ROWS_READ = StoreUse(), StoreUse(StoreForm.ROWS), StoreUse(StoreForm.ROWS, writes=False)


class Kept(Protocol):
    """The definition of what one step keeps in a store of its own: either aggregates or windows.

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
        """Describes how the stored content depends on time, for example a window's length; None if it does not."""

    def lines(self) -> tuple[str, ...]:
        """Describes the definition in lines of text. If a line changes, the definition has changed."""


class Window(Kept, Protocol):
    """The declaration of windows, which are limited by time or by number of messages."""

    @property
    def __name__(self) -> str:
        """The step's name in errors."""

    @property
    def overlaps(self) -> bool:
        """Whether one message may produce several results, because it belongs to several windows."""

    @property
    def owes(self) -> bool:
        """Whether a message may send results of earlier messages. Such a result may fail while the message succeeds."""

    @property
    def asks_headers(self) -> bool:
        """Whether the window calls user functions that take the message's headers."""


class Inlined(NamedTuple):
    """A step as Python code for a generated loop over messages: statements, and an expression for the result.

    If the code raises an exception of ``UNFIT``, the loop calls the step's ``fail`` with the value and the exception.
    """

    statements: tuple[str, ...]
    result: str = ""


class RowColumns(NamedTuple):
    """The state key under which a step stores a row for each message key, and the aggregates that are its columns."""

    state_key: str
    aggregates: Mapping[str, Any]


class Step:
    """Base class of built-in steps. The default values of its properties fit most steps."""

    __slots__ = ()

    #: Whether the engine may compute the step for many messages in one call. It does so if the aggregation or window
    #: after the step is computed with numpy.
    in_runs: ClassVar[bool] = False
    #: The step's role if the task reads several inputs in time order; None without a role.
    order: ClassVar[Order | None] = None
    #: Whether the step subtracts a changed row's old values from the aggregates of the row's group. A group must
    #: subtract what it has added, so no command may change only one of the stores that the groups depend on.
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
        """The definition of the aggregates or windows in the step's own store; None for a step without such a store."""
        return None

    @property
    def row_columns(self) -> RowColumns | None:
        """The aggregates that are the columns of the step's rows; None for a step without such rows."""
        return None

    @property
    def touches(self) -> Touch:
        """Which part of its input value the step itself changes. Changes by user functions are not included."""
        return Touch.NOTHING

    @property
    def makes_object(self) -> bool:
        """Whether each result is a new object. Its fields may still contain objects of the input value."""
        return False

    @property
    def may_share_parts(self) -> bool:
        """Whether the step may put one object into two fields of its result."""
        return False

    def separate(self, value: Any) -> None:
        """Copies the object in the field that the step set.

        Then no other field of ``value`` contains the same object. Called only if ``may_share_parts``, and if a later
        step may change objects in fields.
        """

    @property
    def stands_in_order(self) -> bool:
        """Whether the processor's version includes the position of the step among all steps.

        A step whose text (``describe``) does not show the position must return True.
        """
        return False

    def inlined(self, value: str, named: Callable[[str, Any], str]) -> Inlined | None:
        """Returns the step as code for a generated loop over messages; None if the loop must call the step.

        ``value`` is the name of the variable with the input value. ``named(name, object)`` makes an object available to
        the code and returns its name there.
        """
        return None

    @property
    def outbox(self) -> str:
        """The name of the outbox where the step's results wait for the next commit; empty without an outbox."""
        return ""

    @property
    def key_change(self) -> Callable[[bytes], bytes] | None:
        """For the key function of an output: changes the message's raw key to a raw key of the output topic.

        None if the step makes the key from the value.
        """
        return None

    def describe(self) -> str:
        """Describes the step in one line of text. The version of the processor includes this text.

        The text is empty if the user function alone defines the step's behaviour.
        """
        return ""
