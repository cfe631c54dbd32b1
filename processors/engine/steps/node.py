"""One step of a stream, in the tree of steps that starts at its topic. A node with several children is a branch.

Steps behind joined streams are children of nodes of several trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from holdfast.processors.engine.state.time.stream_time import MAX_AHEAD_MS
from holdfast.processors.engine.steps.async_calls import AsyncCall
from holdfast.processors.engine.steps.in_place import Touch, may_change
from holdfast.processors.engine.steps.processing import Processing
from holdfast.processors.engine.steps.step import VALUES, Kept, Order, Step, StoreUse, Window
from holdfast.processors.engine.steps.topic import Topic


@dataclass(slots=True)
class Node:
    """One step. A stateful step has a ``store``, an output a ``topic``; ``model`` is None unless declared.

    The ``function`` of a source is its ``timestamp_extractor``; a window has a ``window`` and its own store.
    """

    kind: Literal["source", "apply", "update", "filter", "to_topic", "set_timestamp", "set_headers", "window"]
    function: Callable[..., Any] | None = None
    store: str | None = None
    expand: bool = False
    metadata: bool = False
    topic: Topic | None = None
    #: Makes the headers of an output from its value; None sends the message's own headers.
    headers: Callable[[Any], Any] | None = None
    #: Whether the name of the step's store is derived from the stream.
    unnamed: bool = False
    #: The model of the store's values, an argument of ``schema_of``.
    model: Any = None
    #: For a step that sets event times: how far they may be ahead of the worker's clock, in milliseconds. None after a
    #: window, where they move no stream time.
    max_ahead_ms: int | None = MAX_AHEAD_MS
    window: Window | None = None
    #: The meaning of the step's arguments for state, in the lines of ``meaning``.
    meaning: tuple[str, ...] = ()
    #: Whether a result combines several messages: results of one message may share parts, and none has headers.
    of_several: bool = False
    #: Whether the step's functions may change their values; None: their code is examined.
    in_place: bool | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def of_engine(self) -> Step | None:
        """The step of the engine; None for a source, an output, a window or a function of a user."""
        return self.function if isinstance(self.function, Step) else None

    @property
    def kept(self) -> Kept | None:
        """The aggregates or windows that the step keeps in a store of their kind."""
        return self.window or (None if self.of_engine is None else self.of_engine.kept)

    @property
    def store_use(self) -> StoreUse:
        """How it uses its store."""
        return VALUES if self.of_engine is None else self.of_engine.store_use

    @property
    def order(self) -> Order | None:
        """The step's role for the order of reading."""
        return None if self.of_engine is None else self.of_engine.order

    @property
    def call(self) -> AsyncCall | None:
        """How the step's calls of another system are made; None for a step that waits for none."""
        return self.function if isinstance(self.function, AsyncCall) else None

    @property
    def processing(self) -> Processing | None:
        """The declaration of a step with timers; None for another step."""
        return self.function if isinstance(self.function, Processing) else None

    @property
    def asks_headers(self) -> bool:
        """Whether a window calls functions that get headers."""
        return self.window is not None and self.window.asks_headers

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of this step."""
        if self.window is not None:
            return self.window.functions
        if self.of_engine is not None:
            return self.of_engine.functions
        return tuple(function for function in (self.function, self.headers) if function is not None)

    @property
    def changes(self) -> bool:
        """Whether a user's function of this step, or of a later one, may change its argument."""
        return self.touch is not Touch.NOTHING or any(child.changes for child in self.children)

    @property
    def touch(self) -> Touch:
        """What this step may change in the value that it gets."""
        if self.in_place is not None:
            return Touch.ALL if self.in_place else Touch.NOTHING
        if self.topic is not None and self.topic.value_function is not None and may_change(self.topic.value_function):
            return Touch.ALL  # a serializer of the user's, which gets the value, too
        stateful = self.store is not None and self.functions == (self.function,)
        if any(may_change(each, stateful=stateful) for each in self.functions):
            return Touch.ALL
        return Touch.NOTHING if self.of_engine is None else self.of_engine.touches

    @property
    def parts_results(self) -> bool:
        """Whether the results of one message must be copied, so that no step changes another result."""
        overlaps = self.window is not None and self.window.overlaps
        return (self.of_several or overlaps) and self.changes

    @property
    def rule(self) -> str:
        """The behaviour of a join, ``group_by`` or ``apply_async`` in one line.

        Empty for steps defined by their functions.
        """
        return "" if self.of_engine is None else self.of_engine.describe()

    def walk(self) -> list[Node]:
        """This node and all nodes below it, parents first."""
        nodes = [self]
        for child in self.children:
            nodes.extend(child.walk())
        return nodes

    def bound(self, functions: Mapping[int, Callable[..., Any]]) -> Node:
        """These steps with other functions for some nodes, which are given by their ids; the nodes stay unchanged."""
        if not any(id(node) in functions for node in self.walk()):
            return self
        children = [child.bound(functions) for child in self.children]
        if id(self) not in functions:
            return replace(self, children=children)
        return replace(self, function=functions[id(self)], children=children, in_place=self.touch is not Touch.NOTHING)


def steps_of(sources: Iterable[Node]) -> list[Node]:
    """The steps of several sources.

    A step that joined streams share is included once.
    """
    return list({id(node): node for source in sources for node in source.walk()}.values())
