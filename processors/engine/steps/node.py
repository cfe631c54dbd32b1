"""One step of a stream, as a node of a tree. The root of the tree is the topic that the stream reads.

A node with several children splits the stream into branches. A step after a join of two streams is a child of nodes in
both trees.
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
    """One step. A stateful step has a ``store``, an output step has a ``topic``. ``model`` is None unless declared.

    The ``function`` of a source node (the root) is the topic's ``timestamp_extractor``. A window step has a ``window``
    and a store that no other step uses.
    """

    kind: Literal["source", "apply", "update", "filter", "to_topic", "set_timestamp", "set_headers", "window"]
    function: Callable[..., Any] | None = None
    store: str | None = None
    expand: bool = False
    metadata: bool = False
    topic: Topic | None = None
    #: A function that makes the headers of an output from its value; None sends the message's own headers.
    headers: Callable[[Any], Any] | None = None
    #: Whether the name of the step's store was derived from the stream, because the user gave no name.
    unnamed: bool = False
    #: The model of the store's values, in a form that ``schema_of`` accepts.
    model: Any = None
    #: Only for a step that sets event times: maximum milliseconds by which an event time may be ahead of the worker's
    #: clock. None after a window, because event times there do not advance stream time.
    max_ahead_ms: int | None = MAX_AHEAD_MS
    window: Window | None = None
    #: Text lines about the step's arguments on which state depends. The module ``meaning`` makes them.
    meaning: tuple[str, ...] = ()
    #: Whether each result is made from several messages, as after a window. Such results may share objects, and they
    #: have no headers.
    of_several: bool = False
    #: Whether the step's functions may change their arguments. If this is None, the engine examines the code of the
    #: functions.
    in_place: bool | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def of_engine(self) -> Step | None:
        """The built-in step; None if the node is a source, an output, a window, or runs a user's function."""
        return self.function if isinstance(self.function, Step) else None

    @property
    def kept(self) -> Kept | None:
        """The aggregates or windows that the step stores; None for a step without such a store."""
        return self.window or (None if self.of_engine is None else self.of_engine.kept)

    @property
    def store_use(self) -> StoreUse:
        """The kind of values in the step's store, and whether the step changes them."""
        return VALUES if self.of_engine is None else self.of_engine.store_use

    @property
    def order(self) -> Order | None:
        """The step's role in the order of reading (``steps.step.Order``): ``feeds``, ``reads`` or None."""
        return None if self.of_engine is None else self.of_engine.order

    @property
    def outbox(self) -> str:
        """The name of the outbox where this step's results wait for the next commit: a topic's or a sink's name.

        Empty without an outbox.
        """
        if self.topic is not None:
            return self.topic.name
        return "" if self.of_engine is None else self.of_engine.outbox

    @property
    def call(self) -> AsyncCall | None:
        """The declaration of async calls; None for a step that awaits nothing."""
        return self.function if isinstance(self.function, AsyncCall) else None

    @property
    def processing(self) -> Processing | None:
        """The declaration of a step with timers; None for any other step."""
        return self.function if isinstance(self.function, Processing) else None

    @property
    def asks_headers(self) -> bool:
        """Whether the window of this step calls user functions that get headers."""
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
        """Whether a user's function of this step, or of any step after it, may change its argument."""
        return self.touch is not Touch.NOTHING or any(child.changes for child in self.children)

    @property
    def touch(self) -> Touch:
        """Which part of its input value the step may change."""
        if self.in_place is not None:
            return Touch.ALL if self.in_place else Touch.NOTHING
        serialize = None if self.topic is None else self.topic.formats.value_function
        if serialize is not None and may_change(serialize):
            return Touch.ALL  # a user's serializer also gets the value, and may change it
        stateful = self.store is not None and self.functions == (self.function,)
        if any(may_change(each, stateful=stateful) for each in self.functions):
            return Touch.ALL
        return Touch.NOTHING if self.of_engine is None else self.of_engine.touches

    @property
    def parts_results(self) -> bool:
        """Whether the results of one message must be copied, so that each has separate objects.

        This is needed if the results may share objects, and a later step may change these objects.
        """
        overlaps = self.window is not None and self.window.overlaps
        return (self.of_several or overlaps) and self.changes

    @property
    def rule(self) -> str:
        """Describes a built-in step, for example a join or ``group_by``, in one line of text.

        The text is empty for all other steps. It is also empty for steps whose user function alone defines the
        behaviour.
        """
        return "" if self.of_engine is None else self.of_engine.describe()

    def walk(self) -> list[Node]:
        """Returns this node and all nodes below it, parents first."""
        nodes = [self]
        for child in self.children:
            nodes.extend(child.walk())
        return nodes

    def bound(self, functions: Mapping[int, Callable[..., Any] | None]) -> Node:
        """Returns a copy of this node and all nodes below it, with other functions for some of the nodes.

        ``functions`` maps ``id(node)`` to the node's new function. A tree without such a node is returned as it is.
        """
        if not any(id(node) in functions for node in self.walk()):
            return self
        children = [child.bound(functions) for child in self.children]
        if id(self) not in functions:
            return replace(self, children=children)
        return replace(self, function=functions[id(self)], children=children, in_place=self.touch is not Touch.NOTHING)


def steps_of(sources: Iterable[Node]) -> list[Node]:
    """Returns all steps of the trees that begin at ``sources``.

    A step that belongs to several trees is returned once.
    """
    return list({id(node): node for source in sources for node in source.walk()}.values())
