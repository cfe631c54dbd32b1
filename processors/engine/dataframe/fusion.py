"""Steps into one function of a run of messages: Python made from the nodes, with no call but those to user functions.

What ``compilation`` makes is what steps mean; this does the same, several times as fast: a filter is an ``if``, an
expansion a ``for``, an output three appends. The compiled function takes iterators and stops at the first message that
raises, with its outputs taken back and everything before it done; called again, it goes on behind that message. Writes
to state are for the caller to take back.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.dataframe.compilation import (
    UNWRITABLE,
    CurrentMessage,
    compile_steps,
    null_key,
    unwritable,
)
from holdfast.processors.engine.dataframe.dataframe import Node
from holdfast.processors.engine.dataframe.outbox import Outboxes
from holdfast.processors.engine.record_size import UNLIMITED, too_large
from holdfast.processors.engine.state.store import StoreState

#: Takes values, raw keys, timestamps, keys as deserialized and headers of the messages; the latter two as wanted.
RunFunction = Callable[
    [Iterator[Any], Iterator[bytes | None], Iterator[int], Iterator[Any], Iterator[Headers]],
    None,
]


@dataclass(frozen=True, slots=True)
class Run:
    """A stream's steps, ready to run; ``wants_metadata`` tells whether they look at keys and headers."""

    function: RunFunction
    wants_metadata: bool


def compile_run(
    source: Node, stores: Mapping[str, StoreState], outboxes: Outboxes, record_bytes_max: Mapping[str, int]
) -> Run:
    """Compile all steps of one stream.

    Args:
        source: The stream's root.
        stores: The task's stores by name.
        outboxes: Where outputs go.
        record_bytes_max: By output topic, how large a record may be; no entry is no limit.
    """
    writer = _Writer(stores, outboxes, record_bytes_max)
    try:
        function = writer.compile(source)
    except (SyntaxError, RecursionError, MemoryError):  # Python nests loops and blocks only so deep
        return loop_over(source, stores, outboxes, record_bytes_max)
    return Run(function, any(node.metadata for node in source.walk()))


def loop_over(
    source: Node, stores: Mapping[str, StoreState], outboxes: Outboxes, record_bytes_max: Mapping[str, int]
) -> Run:
    """The same from closures, for chains of any depth."""
    current = CurrentMessage()
    step = compile_steps(source, stores, current, outboxes.add, record_bytes_max)

    def run(
        values: Iterator[Any],
        raw_keys: Iterator[bytes | None],
        timestamps: Iterator[int],
        keys: Iterator[Any],
        headers: Iterator[Headers],
    ) -> None:
        for value, raw_key, timestamp, key, header in zip(values, raw_keys, timestamps, keys, headers, strict=False):
            marks = {topic: len(box.values) for topic, box in outboxes.items()}
            current.key = raw_key
            try:
                step(value, key, timestamp, header)
            except BaseException:
                for topic, box in outboxes.items():
                    box.keep(marks.get(topic, 0))
                raise
            for state in stores.values():
                state.keep_message()

    return Run(run, wants_metadata=True)


@dataclass(slots=True)
class _Writer:
    """Writes the function's text, and collects what its names stand for."""

    stores: Mapping[str, StoreState]
    outboxes: Outboxes
    record_bytes_max: Mapping[str, int]
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)

    def compile(self, source: Node) -> RunFunction:
        nodes = source.walk()
        metadata = any(node.metadata for node in nodes)
        boxes = {self._name("box", self.outboxes[node.topic.name]) for node in nodes if node.topic is not None}
        undo_logs = {self._name("undo", self.stores[node.store].undo_log) for node in nodes if node.store is not None}
        marks = [f"mark_{box} = len({box}.values)" for box in sorted(boxes)]
        # One output for a message, as the last thing that is done to it: then there is nothing to take back.
        simple = self._ends_with_its_only_sink(source)
        self._write(0, "def run(values, raw_keys, timestamps, keys, headers):")
        self._write_all(1, marks)
        self._write(1, "try:")
        if metadata:
            self._write(
                2, "for value, raw_key, timestamp, key, header in zip(values, raw_keys, timestamps, keys, headers):"
            )
        else:
            self._write(2, "for value, raw_key, timestamp in zip(values, raw_keys, timestamps):")
        self._write_all(3, [] if simple else marks)
        self._children(source, 3, "value", frozenset())
        self._write_all(3, [f"if {undo}: {undo}.clear()" for undo in sorted(undo_logs)])
        self._write(3, "pass")
        self._write(1, "except BaseException:")
        # Interrupted between the three appends, the last list is the shortest.
        self._write_all(
            2, [f"{box}.keep({f'len({box}.timestamps)' if simple else f'mark_{box}'})" for box in sorted(boxes)]
        )
        self._write(2, "raise")
        self.names.update(unwritable=unwritable, UNWRITABLE=UNWRITABLE, null_key=null_key, too_large=too_large)
        text = "\n".join(self.lines) + "\n"
        file = f"<steps {id(source):x}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
        exec(compile(text, file, "exec"), self.names)  # noqa: S102 - of our own text; topics' names are in it as literals
        function: RunFunction = self.names["run"]
        return function

    @staticmethod
    def _ends_with_its_only_sink(source: Node) -> bool:
        node = source
        while len(node.children) == 1:
            node = node.children[0]
            if node.expand:
                return False
            if node.kind == "to_topic":
                return not node.children
        return False

    def _children(self, node: Node, depth: int, value: str, pointed: frozenset[str]) -> None:
        for child in node.children:
            self._step(child, depth, value, pointed)

    def _step(self, node: Node, depth: int, value: str, pointed: frozenset[str]) -> None:
        if node.kind == "to_topic":
            self._sink(node, depth, value)
            self._children(node, depth, value, pointed)
            return
        arguments = [value, *(["key", "timestamp", "header"] if node.metadata else [])]
        function = self._name("function", node.function)
        if node.store is not None:
            state = self._name("state", self.stores[node.store])
            arguments.append(state)
            if state not in pointed:
                pointed |= {state}
                self._write(depth, f"if raw_key is None: raise null_key({function})")
                self._write(depth, f"{state}.message_key = raw_key")
                self._write(depth, f"{state}.timestamp_ms = timestamp")
        call = f"{function}({', '.join(arguments)})"
        if node.kind == "filter":
            self._write(depth, f"if {call}:")
            self._children(node, depth + 1, value, pointed)
            self._write(depth + 1, "pass")
        elif node.kind == "update":
            self._write(depth, call)
            self._children(node, depth, value, pointed)
        else:
            made = f"value_{len(self.lines)}"
            self._write(depth, f"for {made} in {call}:" if node.expand else f"{made} = {call}")
            self._children(node, depth + node.expand, made, pointed)
            self._write(depth + node.expand, "pass")

    def _sink(self, node: Node, depth: int, value: str) -> None:
        assert node.topic is not None
        topic = node.topic
        box, name = self.outboxes[topic.name], repr(topic.name)
        self._write(depth, f"if {value} is None:")
        self._write(depth + 1, "raw = None")
        self._write(depth + 1, "size = 0")
        self._write(depth, "else:")
        self._serialize(depth + 1, "raw", "value", topic.serialize_value, value, name)
        self._write(depth + 1, "size = len(raw)")
        raw_key = "raw_key"
        if node.function is not None:
            raw_key = "made_key"
            self._write(depth, f"made = {self._name('function', node.function)}({value})")
            self._serialize(depth, raw_key, "key", topic.serialize_key, "made", name)
        self._write(depth, f"if {raw_key} is not None: size += len({raw_key})")
        bytes_max = self.record_bytes_max.get(topic.name, UNLIMITED)
        if bytes_max != UNLIMITED:
            self._write(depth, f"if size > {bytes_max}: raise too_large('An output', {name}, size, {bytes_max})")
        for added, what in ((box.values, "raw"), (box.keys, raw_key), (box.timestamps, "timestamp")):
            self._write(depth, f"{self._name('add', added.append)}({what})")

    def _serialize(
        self, depth: int, into: str, part: str, serializer: Callable[..., Any], what: str, name: str
    ) -> None:
        self._write(depth, f"try: {into} = {self._name('serialize', serializer)}({what})")
        self._write(depth, f"except UNWRITABLE as error: raise unwritable('{part}', {what}, {name}, error) from error")

    def _name(self, kind: str, thing: Any) -> str:
        """A name for a thing; the same one for the same thing."""
        name = self.known.get(id(thing))
        if name is None:
            name = self.known[id(thing)] = f"{kind}_{len(self.known)}"
            self.names[name] = thing  # which also keeps it, so that its id stays its own
        return name

    def _write(self, depth: int, line: str) -> None:
        self.lines.append(" " * depth + line)

    def _write_all(self, depth: int, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(depth, line)
