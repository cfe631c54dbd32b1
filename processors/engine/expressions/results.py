"""Results of ``sdf.apply(f)`` as a column, ``sdf["a"] = sdf.apply(f)``, or as a condition, ``sdf[sdf.apply(f)]``."""

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
    """The functions of consecutive ``apply`` steps; each gets the result of the one before."""

    #: The functions, with whether each gets the metadata, and the state.
    calls: tuple[tuple[Callable[..., Any], bool, bool], ...]
    #: Whether the step gets the metadata.
    metadata: bool

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of users."""
        return tuple(function for function, _, _ in self.calls)

    @property
    def stands_in_order(self) -> bool:
        """The functions do not show that their result becomes a column or a condition."""
        return True

    def result(self, value: Any, rest: Sequence[Any]) -> Any:
        """The result of all functions; ``rest`` are key, timestamp and headers with metadata, and then the state."""
        given, state = (rest[:3], rest[3:]) if self.metadata else ((), rest)
        for function, wants_metadata, wants_state in self.calls:
            value = function(value, *(given if wants_metadata else ()), *(state if wants_state else ()))
        return value


@dataclass(frozen=True, slots=True, eq=False)
class ResultAssigned(Results):
    """``sdf["a"] = sdf.apply(f)``."""

    name: str = ""

    @property
    def touches(self) -> Touch:
        """It changes the object itself."""
        return Touch.OBJECT

    @property
    def may_share_parts(self) -> bool:
        """A function may return a part of the value."""
        return True

    def separate(self, value: Any) -> None:
        """A column has a value of its own, as in JSON."""
        value[self.name] = copied(value[self.name])

    def describe(self) -> str:
        """The step as it was written."""
        return f"sdf[{self.name!r}] = sdf.apply({', '.join(map(_named, self.functions))})"

    def __call__(self, value: Any, *rest: Any) -> None:
        """Assigns the result.

        Raises:
            ColumnUnfit: The value is no object.
        """
        made = self.result(value, rest)
        try:
            value[self.name] = copied(made) if made is value else made  # never an object inside itself
        except (TypeError, AttributeError, LookupError) as error:
            raise not_an_object(value, self.describe()) from error


@dataclass(frozen=True, slots=True, eq=False)
class KeptByResult(Results):
    """``sdf[sdf.apply(f)]``: keeps the messages for which the result is true."""

    def describe(self) -> str:
        """The step as it was written."""
        return f"sdf[sdf.apply({', '.join(map(_named, self.functions))})]"

    def __call__(self, value: Any, *rest: Any) -> Any:
        """What the last function returns; a true value keeps the message."""
        return self.result(value, rest)


def _named(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def taken_out(tails: Sequence[Node], ends: Sequence[Node], what: str) -> list[Node]:
    """The ``apply`` steps between the end of a stream and the end of another one; they no longer follow the stream.

    Raises:
        ColumnInvalid: The second stream is not made of the first one by such steps alone, or was used elsewhere.
    """
    chain = list[Node]() if len(ends) != 1 or not tails else _path(tails[0], ends[0])
    if not chain or any(chain[0] not in tail.children for tail in tails):
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


def _path(start: Node, end: Node) -> list[Node]:
    """The steps behind ``start`` up to ``end``; empty without a way."""
    for child in start.children:
        if child is end:
            return [child]
        further = _path(child, end)
        if further:
            return [child, *further]
    return []


def result_node(kind: Any, chain: Sequence[Node], make: Callable[..., Step]) -> Node:
    """One step in the place of a chain, which ``make`` builds from the calls and whether any gets the metadata."""
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
