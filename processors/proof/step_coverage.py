"""Records which steps of an application were reached by messages, so that a proof can list the untested steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.processors.engine.changelog.names import is_repartition_topic
from holdfast.processors.engine.steps.node import Node, steps_of


class StepCoverage:
    """Records which steps of an application were reached by messages since ``begin``.

    A counting step is added before each step. Counting steps change no value. With them, the engine processes messages
    one by one, not in batches as columns. The results are identical.

    Args:
        sources: Input topic -> source node. Steps after the sources are modified, so do not use the application for
            anything else.
    """

    def __init__(self, sources: Mapping[str, Node]) -> None:
        self._sources = sources
        #: All steps of the application, without the counting steps.
        self.nodes: tuple[Node, ...] = tuple(steps_of(sources.values()))
        self._behind = {id(node): tuple(node.children) for node in self.nodes}
        self._seen: set[int] = set()
        for node in self.nodes:
            # Steps directly after a source are not counted, because each message of the topic reaches them.
            if node.kind != "source":
                node.children[:] = [self._counted(child) for child in node.children]

    def begin(self) -> None:
        """Forget all reached steps, and start to record again."""
        self._seen.clear()

    def missed(self, between: Collection[str]) -> tuple[str, ...]:
        """Returns the steps that no message reached; of consecutive such steps in a branch, only the first.

        ``between`` has the internal topics (repartition topics and similar) to which the run wrote records. Steps
        behind other internal topics are not listed.
        """
        found: list[Node] = []
        for topic, source in self._sources.items():
            if not is_repartition_topic(topic) or topic in between:
                found += self._missed_behind(source)
        return tuple(dict.fromkeys(map(named, found)))

    def sources_without(self, messages: Collection[str]) -> Iterable[str]:
        """A text for each input topic from which the proof has no message."""
        for topic in self._sources:
            if topic not in messages and not is_repartition_topic(topic):
                yield f"no committed message of topic {topic} was left"

    def _missed_behind(self, node: Node) -> list[Node]:
        found: list[Node] = []
        for child in self._behind[id(node)]:
            if node.kind == "source" or id(child) in self._seen:
                found += self._missed_behind(child)
            else:
                found.append(child)
        return found

    def _counted(self, child: Node) -> Node:
        seen, name = self._seen, id(child)

        def count(value: Any) -> None:
            seen.add(name)

        return Node("update", count, in_place=False, children=[child])


def named(node: Node) -> str:
    """The step as text with its place in the user's code, for example ```filter(is_late)` (orders.py, line 12)``."""
    if node.topic is not None:
        return "`group_by`" if node.topic.repartitions else f"`to_topic({node.topic.name})`"
    if node.window is not None:
        return f"the window of store `{node.store}`"
    function: Any = node.function
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    where = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code is not None else ""
    return f"`{node.kind}({name})`{where}"
