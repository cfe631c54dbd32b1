"""Steps for ``sdf["a"] = sdf.apply(f)`` (makes a column of the result) and ``sdf[sdf.apply(f)]`` (a filter)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.processors.engine.expressions.failures import ColumnInvalid, not_an_object
from holdfast.processors.engine.steps.in_place import Touch, copied
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.step import Step


@dataclass(frozen=True, slots=True, eq=False)
class Results(Step):
    """Base class of steps with the user functions of consecutive ``apply`` steps.

    Each function gets the result of the function before it.
    """

    #: Triples: the function, whether it gets key, timestamp and headers, and whether it gets the state.
    calls: tuple[tuple[Callable[..., Any], bool, bool], ...]
    #: Whether the step gets key, timestamp and headers in addition to the value.
    metadata: bool

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        return tuple(function for function, _, _ in self.calls)

    @property
    def stands_in_order(self) -> bool:
        """Returns True, so that the version hash contains the step's position.

        The hash also contains the functions' source code. But this code does not show which steps use the results, so
        the position is needed, too.
        """
        return True

    def result(self, value: Any, rest: Sequence[Any]) -> Any:
        """Returns the last function's result.

        ``rest`` has key, timestamp and headers (if ``metadata``), then the state.
        """
        given, state = (rest[:3], rest[3:]) if self.metadata else ((), rest)
        for function, wants_metadata, wants_state in self.calls:
            value = function(value, *(given if wants_metadata else ()), *(state if wants_state else ()))
        return value


@dataclass(frozen=True, slots=True, eq=False)
class ResultAssigned(Results):
    """The step ``sdf["a"] = sdf.apply(f)``: assigns the result to a column."""

    name: str = ""

    @property
    def touches(self) -> Touch:
        """Declares that the step changes the value object itself, not a copy."""
        return Touch.OBJECT

    @property
    def may_share_parts(self) -> bool:
        """Returns True, because a user function may return an object that is also a part of the value."""
        return True

    def separate(self, value: Any) -> None:
        """Replaces the assigned column by a copy, so that it shares no object with the rest of the value."""
        value[self.name] = copied(value[self.name])

    def describe(self) -> str:
        """The step as code, for example ``sdf['a'] = sdf.apply(f)``."""
        return f"sdf[{self.name!r}] = sdf.apply({', '.join(map(_named, self.functions))})"

    def __call__(self, value: Any, *rest: Any) -> None:
        """Calls the functions and assigns the result to the column.

        Raises:
            ColumnUnfit: The value is not an object.
        """
        made = self.result(value, rest)
        try:
            # If a function returned the value itself, a copy is assigned, because a value that contains itself can't be
            # serialized.
            value[self.name] = copied(made) if made is value else made
        except (TypeError, AttributeError, LookupError) as error:
            raise not_an_object(value, self.describe()) from error


@dataclass(frozen=True, slots=True, eq=False)
class KeptByResult(Results):
    """The step ``sdf[sdf.apply(f)]``: keeps the messages for which the result is true."""

    def describe(self) -> str:
        """The step as code, for example ``sdf[sdf.apply(f)]``."""
        return f"sdf[sdf.apply({', '.join(map(_named, self.functions))})]"

    def __call__(self, value: Any, *rest: Any) -> Any:
        """Returns the result of the last function. If it is true, the message is kept."""
        return self.result(value, rest)


def _named(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def taken_out(tails: Sequence[Node], ends: Sequence[Node], what: str) -> list[Node]:
    """Removes the ``apply`` steps of ``sdf.apply(f)`` from the tree of the stream ``sdf``, and returns them.

    ``tails`` are the last steps of ``sdf``. ``ends`` are the last steps of ``sdf.apply(f)``.

    Raises:
        ColumnInvalid: There are other steps than ``apply`` between ``tails`` and ``ends``, or the steps are also used
            elsewhere.
    """
    chain = list[Node]() if len(ends) != 1 else _path(_shared(tails), ends[0])
    if not chain:
        raise ColumnInvalid(
            f"{what} got a stream that is not made by `apply` from the same stream, or was used so before.",
            action='Write it at once: `sdf["a"] = sdf.apply(function)`, or `sdf[sdf.apply(function)]`.',
        )
    for at, node in enumerate(chain):
        if node.kind != "apply" or node.expand or node.of_engine is not None or node.call is not None:
            raise ColumnInvalid(
                f"{what} got a stream with a step other than `apply` of one result; expected a value for each message.",
                action="Use `apply` without `expand` in it, or make the steps before it.",
            )
        if node.children != chain[at + 1 : at + 2]:
            raise ColumnInvalid(
                f"{what} got a stream that has further steps or branches.",
                action="Write the `apply` again for the column, in place of the variable that has other steps.",
            )
    if len({node.store for node in chain if node.store is not None}) > 1:
        raise ColumnInvalid(
            f"{what} got functions with different stores; one step has one store.",
            action="Assign the results to two columns, one after the other.",
        )
    for tail in tails:
        tail.children.remove(chain[0])
    return chain


def _shared(tails: Sequence[Node]) -> list[Node]:
    """Returns the steps that directly follow all ``tails``.

    A stream that is concatenated with its own branch has a tail behind another one. A path through the branch is not
    that of the stream.
    """
    first = tails[0].children if tails else []
    return [child for child in first if all(any(child is each for each in tail.children) for tail in tails)]


def _path(starts: Sequence[Node], end: Node) -> list[Node]:
    """Returns the steps of a path that begins with one of ``starts``, up to ``end``; empty if there is none."""
    for child in starts:
        if child is end:
            return [child]
        further = _path(child.children, end)
        if further:
            return [child, *further]
    return []


def result_node(kind: Any, chain: Sequence[Node], make: Callable[..., Step]) -> Node:
    """Returns one step that replaces the ``apply`` steps in ``chain``.

    ``make`` builds it from the functions, and from whether any function gets key, timestamp and headers.
    """
    metadata = any(node.metadata for node in chain)
    calls = tuple((node.function, node.metadata, node.store is not None) for node in chain)
    stored = next((node for node in chain if node.store is not None), None)
    model = next((node.model for node in chain if node.model is not None), None)
    return Node(
        kind,
        make(calls, metadata),  # type: ignore[arg-type]
        None if stored is None else stored.store,
        metadata=metadata,
        unnamed=stored is not None and stored.unnamed,
        model=model,
    )
