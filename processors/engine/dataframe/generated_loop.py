"""Generates the loop over messages as Python code. To read the code, run ``print(run_text(sdf.source))``.

The code contains the engine's own steps inline, so it mostly calls user functions and serializers. A filter becomes an
``if``. ``apply(expand=True)`` becomes a ``for``. An output becomes three appends to lists. The results of the code
equal those of ``plain_loop``, which defines what steps do.
``sdf.filter(a).apply(b, stateful=True).to_topic(out)`` becomes, without the checks of sizes and serializers::

    def run(values, raw_keys, timestamps, keys, headers):
     mark_box = len(box.values)
     try:
      for value, raw_key, timestamp, header in zip(values, raw_keys, timestamps, headers):
       if a(value):                                          # filter
        if raw_key is None: raise null_key(b)
        state.message_key = raw_key                          # point the store at the message's key
        state.timestamp_ms = timestamp
        value_9 = b(value, state)                            # apply, stateful
        raw = serialize(value_9)                             # to_topic
        if header: headers_of_box[len(values_of_box)] = header
        add_value(raw); add_key(raw_key); add_timestamp(timestamp)
       if undo: undo.clear()                                 # the message succeeded: keep its state
     except BaseException:
      box.keep(len(box.timestamps))                          # remove the outputs of the failed message
      raise

A task with several inputs may process records of all inputs in one call. Its function also gets the rank of each
record's input. The steps of each input come after ``if rank == 0:``, ``elif rank == 1:`` and so on.

The generated function gets iterators. If the steps raise an error for a message, the function removes the outputs of
this message and stops. All earlier messages are complete. A second call with the same iterators continues after the
failed message. The caller must undo the failed message's writes to state.

``tests/unit/processors/engine/dataframe/test_generated_loop.py`` compares both loops for random chains of steps.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from holdfast.infra.kafka.records import Headers
from holdfast.infra.schemas.codecs import StampingWriter
from holdfast.processors.engine.aggregates.window_aggregates import FailedResult
from holdfast.processors.engine.dataframe.plain_loop import (
    NO_TIMING,
    Run,
    RunFunction,
    Timing,
    aside_of,
    headers_set,
    loop_over,
    null_key,
    sets_timestamps,
    taker_of,
    unwritable,
    uses_headers,
)
from holdfast.processors.engine.formats.kafka_message import UNWRITABLE
from holdfast.processors.engine.formats.serialization import headers_size, written_headers
from holdfast.processors.engine.record_size import UNLIMITED, too_large
from holdfast.processors.engine.record_times import ANY_TIME, RecordTimes
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import StreamTime, event_time
from holdfast.processors.engine.steps.branches import Shared, branches_of, copy_before, separates, shared_behind
from holdfast.processors.engine.steps.in_place import apart, copied
from holdfast.processors.engine.steps.node import Node, steps_of
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.engine.steps.step import UNFIT, Inlined
from holdfast.processors.engine.windows.kinds import stored_windows
from holdfast.processors.engine.windows.spec import window_of
from holdfast.processors.engine.windows.stored import MessagePlace

#: The generated function for the streams of several inputs. Its additional first argument is an iterator with the
#: number of each message's input. The other arguments are those of ``RunFunction``.
WovenFunction = Callable[
    [Iterator[int], Iterator[Any], Iterator[bytes | None], Iterator[int], Iterator[Any], Iterator[Headers]], None
]


def compile_run(
    source: Node,
    stores: Mapping[str, StoreState],
    outboxes: Outboxes,
    record_bytes_max: Mapping[str, int],
    times: RecordTimes = ANY_TIME,
    timing: Timing = NO_TIMING,
) -> Run:
    """Compiles all steps of one stream to a function.

    If ``source`` is a window, compiles the steps after the window to a function of the window's results. An output
    topic without an entry in ``record_bytes_max`` has no size limit.
    """
    writer = _Writer(stores, outboxes, record_bytes_max, times, timing)
    try:
        function: RunFunction = writer.compile([source], [timing])
    except (SyntaxError, RecursionError, MemoryError):  # the steps are nested too deeply for Python's compiler
        return loop_over(source, stores, outboxes, record_bytes_max, times, timing)
    return Run(function, uses_headers(source))


def compile_interleaved(
    sources: Sequence[Node],
    timings: Sequence[Timing],
    stores: Mapping[str, StoreState],
    outboxes: Outboxes,
    record_bytes_max: Mapping[str, int],
    times: RecordTimes = ANY_TIME,
) -> WovenFunction | None:
    """Compiles the steps of several streams of one task to one function.

    Returns None if Python can't compile the code.
    """
    writer = _Writer(stores, outboxes, record_bytes_max, times, timings[0])
    try:
        function: WovenFunction = writer.compile(sources, timings)
    except (SyntaxError, RecursionError, MemoryError):
        return None
    return function


def run_text(source: Node) -> str:
    """Returns the generated code for a stream's steps as text. The engine does not use this text."""
    empty = TaskStore(MemoryDatabases(lambda path, items: None), Path("unused"))
    nodes, stream, place = source.walk(), StreamTime(), MessagePlace()
    stores = {node.store: StoreState(node.store, empty) for node in nodes if node.store is not None}
    windows = {
        node.store: stored_windows(spec, stores[node.store], stream, place)
        for node in nodes
        if (spec := window_of(node)) is not None and node.store is not None
    }
    timing = Timing(stream if windows else None, windows=windows)
    return _Writer(stores, Outboxes(), {}, ANY_TIME, timing).write([source], [timing])


class _At(NamedTuple):
    """The variable names of the value, the event time and the headers at a step of the generated code."""

    value: str
    timestamp: str
    header: str


_FIRST = _At("value", "timestamp", "header")


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    """Compiles generated code.

    The result is cached, because all tasks of a subtopology (inputs that share stores) have the same code.
    """
    file = f"<steps {xxh3_64_hexdigest(text.encode())}>"
    # Because of this entry in Python's cache of source lines, tracebacks show the lines of the generated code.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec")


def _brings_owed(source: Node) -> bool:
    """Whether a window step of the stream may send results of earlier messages.

    Such a result can fail without failing the current message.
    """
    return any(node.window is not None and node.window.owes for node in source.walk())


@dataclass(slots=True)
class _Writer:
    """Writes the generated code, and collects the objects to which names in the code refer."""

    stores: Mapping[str, StoreState]
    outboxes: Outboxes
    record_bytes_max: Mapping[str, int]
    times: RecordTimes
    timing: Timing
    repoints: bool = False
    limit: str = ""
    first: _At = _FIRST
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)

    def compile(self, sources: Sequence[Node], timings: Sequence[Timing]) -> Any:
        """Compiles one function for the steps of these sources.

        ``timings`` has one item for each source, in the same order.
        """
        text = self.write(sources, timings)
        exec(_compiled(text), self.names)  # noqa: S102 # nosec B102: our own text, with literals
        return self.names["run"]

    def write(self, sources: Sequence[Node], timings: Sequence[Timing]) -> str:
        nodes, is_woven = steps_of(sources), len(sources) > 1
        boxes = {self._name("box", self.outboxes[node.outbox]) for node in nodes if node.outbox}
        marks = [f"mark_{box} = len({box}.values)" for box in sorted(boxes)]
        # If the only output is the last step, no step can fail after it. A failed message then has no output to remove.
        simple = not is_woven and self._ends_with_its_only_sink(sources[0])
        taken = ["value", "raw_key", "timestamp", "key", "header"]
        self._write(0, f"def run({'ranks, ' * is_woven}{', '.join(f'{name}s' for name in taken)}):")
        self._write_all(1, marks)
        for topic in sorted({node.topic.name for node in nodes if node.topic is not None}):
            # The limits for record times are read only once in each call, because the worker processes all messages of
            # a call within milliseconds.
            if self.times.limits(topic):
                earliest, latest = self._bounds(topic)
                self._write(1, f"{earliest}, {latest} = times.bounds({topic!r})")
        for rank, (source, timing) in enumerate(zip(sources, timings, strict=True)):
            if source.kind == "source" and timing.stream is not None:
                self._write(1, f"limit_{rank} = stream.latest_ms({source.max_ahead_ms or 0})")
        if timings[0].stream is not None:
            self._write(1, "reach = stream.reach_ms")
        self._write(1, "try:")
        if not any(map(uses_headers, sources)):
            taken.remove("header")
            self.first = _FIRST._replace(header="None")
        if not any(node.metadata or node.kind == "window" for node in nodes):
            taken.remove("key")
        taken = ["rank", *taken] if is_woven else taken
        self._write(2, f"for {', '.join(taken)} in zip({', '.join(f'{name}s' for name in taken)}):")
        self._write_all(3, [] if simple else marks)
        for rank, (source, timing) in enumerate(zip(sources, timings, strict=True)):
            if is_woven:
                self._write(3, f"{'elif' if rank else 'if'} rank == {rank}:")
            self.timing, self.limit = timing, f"limit_{rank}"
            self._message(source, 3 + is_woven)
        self._write(1, "except BaseException:")
        # A signal may interrupt the three appends of an output. The last of the three lists therefore has the number of
        # complete outputs.
        self._write_all(
            2, [f"{box}.keep({f'len({box}.timestamps)' if simple else f'mark_{box}'})" for box in sorted(boxes)]
        )
        if self.timing.aside is not None and any(map(_brings_owed, sources)):
            self._write(2, "failed_results.clear()")
            self.names["failed_results"] = self.timing.aside.failed
        self._write(2, "raise")
        self.names.update(
            FailedResult=FailedResult,
            unwritable=unwritable,
            UNWRITABLE=UNWRITABLE,
            UNFIT=UNFIT,
            null_key=null_key,
            too_large=too_large,
            times=self.times,
            written_headers=written_headers,
            headers_set=headers_set,
            headers_size=headers_size,
            copied=copied,
            apart=apart,
            event_time=event_time,
            stream=self.timing.stream,
        )
        return "\n".join(self.lines) + "\n"

    def _message(self, source: Node, depth: int) -> None:
        """Generates the code for all steps of one source."""
        nodes = source.walk()
        undo_logs = {self._name("undo", self.stores[node.store].undo_log) for node in nodes if node.store is not None}
        # A window or ``set_timestamp`` changes the event time. Each later stateful step must therefore set the time in
        # its store again. Steps of another branch must do this, too, if their code comes after the code of this branch.
        self.repoints = any(node.kind in ("window", "set_timestamp") for node in nodes)
        stream = self.timing.stream if source.kind == "source" else None
        dated = sets_timestamps(source)
        if source.kind == "source" and source.function is not None:
            extract, kind = self._name("extract", source.function), self._name("kind", self.timing.kind)
            self._write(depth, f"timestamp = event_time({extract}(value, header, timestamp, {kind}), {extract})")
        if stream is not None:
            self._write(depth, "latest = -1" if dated else self._checked("timestamp", source.max_ahead_ms or 0))
        self._children(source, depth, self.first, frozenset(), Shared.NOTHING)
        if self.timing.aside is not None and _brings_owed(source):
            self._write(depth, f"if failed_results: {self._name('aside', self.timing.aside)}.decide()")
        if stream is not None:
            seen = "latest" if dated else "timestamp"
            self._write(depth, f"if {seen} > stream.time_ms:")
            self._write(
                depth + 1, f"if {seen} <= reach: stream.time_ms = {seen}"
            )  # the assignment is generated inline, because most messages advance stream time directly
            self._write(depth + 1, f"else: stream.advance({seen})")
        self._write_all(depth, [f"if {undo}: {undo}.clear()" for undo in sorted(undo_logs)])
        self._write(depth, "pass")

    def _checked(self, timestamp: str, max_ahead_ms: int) -> str:
        # The two limits of an event time are checked inline, so that a message with a valid time needs no function
        # call.
        return f"if not 0 <= {timestamp} <= {self.limit}: stream.check({timestamp}, {max_ahead_ms})"

    @staticmethod
    def _ends_with_its_only_sink(source: Node) -> bool:
        node = source
        while len(node.children) == 1:
            node = node.children[0]
            if node.expand or node.kind == "window" or (node.outbox and node.topic is None):
                return False
            if node.kind == "to_topic":
                return not node.children
        return False

    def _children(self, node: Node, depth: int, at: _At, pointed: frozenset[str], shared: Shared) -> None:
        for child, seen in branches_of(node, shared):
            self._step(child, depth, self._own(child, depth, at, seen), pointed, shared_behind(child, seen))

    def _own(self, node: Node, depth: int, at: _At, shared: Shared) -> _At:
        """Generates copies of value and headers before a step that may change them, if other branches read them."""
        copy, line = copy_before(node, shared), len(self.lines)
        if copy is None:
            return at
        made = f"value_{line}"
        if copy is not copied:
            self._write(depth, f"{made} = {at.value}.copy() if type({at.value}) is dict else copied({at.value})")
            return at._replace(value=made)
        self._write(depth, f"{made} = copied({at.value})")
        if at.header == "None":
            return at._replace(value=made)
        self._write(depth, f"header_{line} = {at.header} and list({at.header})")
        return at._replace(value=made, header=f"header_{line}")

    def _step(self, node: Node, depth: int, at: _At, pointed: frozenset[str], shared: Shared) -> None:
        if node.kind == "to_topic":
            self._sink(node, depth, at)
            self._children(node, depth, at, pointed, shared)
            return
        if node.kind == "window":
            self._window(node, depth, at, shared)
            return
        inlined = None if node.of_engine is None else node.of_engine.inlined(at.value, self._name)
        if inlined is not None:
            self._column(node, inlined, depth, at, pointed, shared)
            return
        value = at.value
        arguments = [value, *(["key", at.timestamp, at.header] if node.metadata else [])]
        function = self._name("function", node.function)
        if node.store is not None:
            state = self._name("state", self.stores[node.store])
            arguments.append(state)
            if state not in pointed:
                pointed |= frozenset() if self.repoints else {state}
                self._write(depth, f"if raw_key is None: raise null_key({function})")
                self._write(depth, f"{state}.message_key = raw_key")
                self._write(depth, f"{state}.timestamp_ms = {at.timestamp}")
        call = f"{function}({', '.join(arguments)})"
        if node.kind == "filter":
            self._write(depth, f"if {call}:")
            self._children(node, depth + 1, at, pointed, shared)
            self._write(depth + 1, "pass")
        elif node.kind == "update":
            self._write(depth, call)
            self._write_all(depth, [f"{function}.separate({value})"] * separates(node))
            self._children(node, depth, at, pointed, shared)
        elif node.kind == "set_headers":
            made = f"header_{len(self.lines)}"
            given = f"{value}, key, {at.timestamp}, list({at.header} or ())"
            self._write(depth, f"{made} = headers_set({function}({given}), {function})")
            self._children(node, depth, at._replace(header=made), pointed, shared)
        elif node.kind == "set_timestamp":
            made = f"timestamp_{len(self.lines)}"
            self._write(depth, f"{made} = event_time({call}, {function})")
            if self.timing.stream is not None and node.max_ahead_ms is not None:
                self._write(depth, self._checked(made, node.max_ahead_ms))
                self._write(depth, f"if {made} > latest: latest = {made}")
            self._children(node, depth, at._replace(timestamp=made), pointed, shared)
        else:
            made = f"value_{len(self.lines)}"
            items = f"apart({call})" if node.expand and node.parts_results else call
            self._write(depth, f"for {made} in {items}:" if node.expand else f"{made} = {call}")
            header = "None" if node.of_several else at.header
            self._children(node, depth + node.expand, at._replace(value=made, header=header), pointed, shared)
            self._write(depth + node.expand, "pass")

    def _column(  # tidy: allow-wide because the arguments are those of _step, and the step's code.
        self, node: Node, inlined: Inlined, depth: int, at: _At, pointed: frozenset[str], shared: Shared
    ) -> None:
        """Generates the code of a column expression.

        If the code raises an exception, ``fail`` of the step is called.
        """
        made, function = f"value_{len(self.lines)}", self._name("function", node.function)
        result = (f"{made} = {inlined.result}",) if inlined.result else ()
        self._write(depth, "try:")
        self._write_all(depth + 1, (*inlined.statements, *result))
        self._write(depth, f"except UNFIT as error: {function}.fail({at.value}, error)")
        self._write_all(depth, [f"{function}.separate({at.value})"] * separates(node))
        if node.kind == "filter":
            self._write(depth, f"if {made}:")
            self._children(node, depth + 1, at, pointed, shared)
            self._write(depth + 1, "pass")
            return
        self._children(node, depth, at._replace(value=made) if inlined.result else at, pointed, shared)

    def _window(self, node: Node, depth: int, at: _At, shared: Shared) -> None:
        assert node.store is not None
        take = self._name("take", taker_of(node, self.timing, self.stores).take)
        self._write(depth, f"if raw_key is None: raise null_key({self._name('window', node.window)})")
        line = len(self.lines)
        made = _At(f"value_{line}", f"timestamp_{line}", "None")
        aside = aside_of(node, self.timing)
        headers = f", {at.header}" if node.asks_headers else ""
        results = f"{take}({at.value}, key, raw_key, {at.timestamp}{headers})"
        results = f"apart({results})" if node.parts_results else results
        if aside is None:
            self._write(depth, f"for {made.value}, {made.timestamp} in {results}:")
            self._children(node, depth + 1, made, frozenset(), shared)
            self._write(depth + 1, "pass")
            return
        called = self._name("aside", aside)
        self._write(depth, f"for result_{line} in {results}:")
        self._write(depth + 1, f"{made.value}, {made.timestamp} = result_{line}")
        self._write(depth + 1, f"mark_{line} = {called}.mark()")
        self._write(depth + 1, "try:")
        self._write(depth + 2, f"if type({made.value}) is FailedResult: raise {made.value}.error")
        self._children(node, depth + 2, made, frozenset(), shared)
        self._write(
            depth + 1, f"except BaseException as error: {called}.fails(result_{line}, raw_key, mark_{line}, error)"
        )

    def _sink(self, node: Node, depth: int, at: _At) -> None:
        assert node.topic is not None
        topic, value = node.topic, at.value
        box, name = self.outboxes[topic.name], repr(topic.name)
        self._write(depth, f"if {value} is None:")
        self._write(depth + 1, "raw = None")
        self._write(depth + 1, "size = 0")
        self._write(depth, "else:")
        self._serialize(depth + 1, "raw", "value", topic.serialize_value, value, name)
        self._write(depth + 1, "size = len(raw)")
        raw_key = "raw_key"
        change = None if node.of_engine is None else node.of_engine.key_change
        if change is not None:
            raw_key = "made_key"
            self._write(depth, f"made_key = None if raw_key is None else {self._name('change', change)}(raw_key)")
        elif node.function is not None:
            raw_key = "made_key"
            self._write(depth, f"made = {self._name('function', node.function)}({value})")
            self._write(depth, "if made is None: made_key = None")
            self._write(depth, "else:")
            self._serialize(depth + 1, raw_key, "key", topic.serialize_key, "made", name)
        self._write(depth, f"if {raw_key} is not None: size += len({raw_key})")
        headers = at.header
        if node.headers is not None:
            headers = "made_headers"
            made = f"{self._name('function', node.headers)}({value})"
            self._write(depth, f"made_headers = written_headers({made}, {name})")
        if isinstance(topic.serialize_value, StampingWriter):
            stamped = self._name("stamped", topic.serialize_value.stamped)
            self._write(depth, f"made_headers = {headers} if raw is None else {stamped}({headers})")
            headers = "made_headers"
        self._write(depth, f"if {headers}: size += headers_size({headers})")
        bytes_max = self.record_bytes_max.get(topic.name, UNLIMITED)
        if bytes_max != UNLIMITED:
            self._write(depth, f"if size > {bytes_max}: raise too_large('An output', {name}, size, {bytes_max})")
        if self.times.limits(topic.name):
            earliest, latest = self._bounds(topic.name)
            time = at.timestamp
            self._write(depth, f"if not {earliest} <= {time} <= {latest}: raise times.refusal({name}, {time})")
        self._write(
            depth,
            f"if {headers}: {self._name('headers', box.headers)}[len({self._name('values', box.values)})] = {headers}",
        )
        for added, what in ((box.values, "raw"), (box.keys, raw_key), (box.timestamps, at.timestamp)):
            self._write(depth, f"{self._name('add', added.append)}({what})")

    def _serialize(
        self, depth: int, into: str, part: str, serializer: Callable[..., Any], what: str, name: str
    ) -> None:
        self._write(depth, f"try: {into} = {self._name('serialize', serializer)}({what})")
        self._write(depth, f"except UNWRITABLE as error: raise unwritable('{part}', {what}, {name}, error) from error")

    def _bounds(self, topic: str) -> tuple[str, str]:
        box = self._name("box", self.outboxes[topic])
        return f"earliest_{box}", f"latest_{box}"

    def _name(self, kind: str, thing: Any) -> str:
        """Returns a name for an object. The same object always gets the same name."""
        name = self.known.get(id(thing))
        if name is None:
            name = self.known[id(thing)] = f"{kind}_{len(self.known)}"
            self.names[name] = thing  # this reference keeps the object alive, so that its id is not used again
        return name

    def _write(self, depth: int, line: str) -> None:
        self.lines.append(" " * depth + line)

    def _write_all(self, depth: int, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(depth, line)
