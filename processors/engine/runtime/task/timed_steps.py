"""Builds the parts of a task that act without a message: stream time, windows, timers, schedules and sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.processors.engine.aggregates.aggregation import aggregation_of
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.groups import schedules_by_store, sources_by_store
from holdfast.processors.engine.dataframe.plain_loop import Run, Timing, topic_sender
from holdfast.processors.engine.record_size import UNLIMITED
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.reading.watermark_writer import Grouping, WatermarkWriter
from holdfast.processors.engine.runtime.task.store_time import DeclaredStores, StoreTime
from holdfast.processors.engine.runtime.task.task_time import TaskTime, WindowSteps
from holdfast.processors.engine.runtime.task.task_timers import TaskTimers, TimerSteps
from holdfast.processors.engine.schedules.firing import TaskSchedules
from holdfast.processors.engine.schedules.reading import ReadableStore
from holdfast.processors.engine.schedules.slot import Reach
from holdfast.processors.engine.sources.handover import Limits
from holdfast.processors.engine.sources.running import TaskSources
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.steps.node import Node, steps_of
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.engine.steps.processing import Processor
from holdfast.processors.engine.steps.step import StoreForm
from holdfast.processors.engine.windows.fewer_results import FewerResults
from holdfast.processors.engine.windows.keys_ahead import KeysAhead
from holdfast.processors.engine.windows.kinds import stored_windows
from holdfast.processors.engine.windows.spec import window_of


def time_of(
    frames: Sequence[StreamingDataFrame],
    states: Mapping[str, StoreState],
    declared: DeclaredStores,
    times: RecordTimes,
    *,
    tells: bool = False,
) -> TaskTime | None:
    """Returns the ``TaskTime`` of a task with these streams and stores.

    Returns None if no step needs stream time and the task writes no watermarks (``tells`` is False).
    """
    steps = [node for node in steps_of(frame.source for frame in frames) if node.store is not None]
    timers = {node.store for node in steps if node.processing is not None}
    expiring = {name for name, (_, options) in declared.items() if options is not None and options.expires}
    if not (tells or timers or expiring or any(window_of(node) is not None for node in steps)):
        return None
    made = TaskTime(states, times)
    made.closings.meeting = meeting_windows([frame.source for frame in frames])
    for node in steps:
        spec = window_of(node)
        if spec is not None and node.store is not None:
            state = states[node.store]
            made.windows[node.store] = windows = stored_windows(spec, state, made.stream, made.place)
            if spec.final and spec.closing == "key":
                windows.keys_ahead = KeysAhead(windows, state, made.stream)
                made.ahead.append(windows.keys_ahead)
            if spec.every_ms is not None:
                made.held[node.store] = FewerResults(windows, spec.every_ms, state, made.stream)
    regrouped = any(frame.topic.repartitions for frame in frames)
    for name, (state, options) in declared.items():
        if name in timers or name in expiring:
            made.stores[name] = StoreTime(state, options, made.stream, regrouped=regrouped)
    return made


def meeting_windows(sources: Sequence[Node]) -> frozenset[str]:
    """Returns the stores of those windows that must close between two messages, not at the commit.

    These are windows whose results go to a later step or store that also gets messages. Examples: a step with several
    parents (``concat``), a join, a table, or a store that several streams use.
    """
    found = set()
    nodes = steps_of(sources)
    for window in nodes:
        spec = window_of(window)
        if spec is None or window.store is None or not (spec.final or spec.every_ms is not None):
            continue  # results are sent at once for each message, so they need no closing
        behind = {id(node): node for child in window.children for node in child.walk()}
        apart = _reached_without(window, sources)
        others = {node.store for node in apart.values()}
        for place, node in behind.items():
            writes = node.store is not None or (node.topic is not None and node.topic.repartitions)
            if (writes and place in apart) or (node.store is not None and node.store in others):
                found.add(window.store)
    return frozenset(found)


def _reached_without(window: Node, sources: Sequence[Node]) -> dict[int, Node]:
    """Maps ``id(step)`` to each step that messages can reach without passing through this window."""
    found: dict[int, Node] = {}
    waiting = list(sources)
    while waiting:
        node = waiting.pop()
        if node is not window and id(node) not in found:
            found[id(node)] = node
            waiting.extend(node.children)
    return found


def watermark_writers_of(
    task: str,
    frames: Sequence[StreamingDataFrame],
    groupings: Mapping[str, Grouping],
    by_topic: Mapping[str, StreamingDataFrame],
) -> tuple[WatermarkWriter, ...]:
    """Returns the objects that write a task's watermarks (``WatermarkWriter``).

    One writer is for topics that get messages of source topics, another one for topics that get messages of repartition
    topics. A topic gets watermarks only if a downstream step or the downstream reading order needs stream time. If the
    task's own watermarks come back to it through a topic, this topic has a separate writer.
    """
    leads: dict[str, set[str]] = {}
    for frame in frames:
        for node in steps_of([frame.source]):
            if node.topic is not None and node.topic.repartitions and node.topic.name in groupings:
                leads.setdefault(node.topic.name, set()).add(frame.topic.name)
    regrouped = {frame.topic.name for frame in frames if frame.topic.repartitions}
    every = frozenset(frame.topic.name for frame in frames)
    found = []
    told = {name: by for name, by in leads.items() if _needs_time(by_topic[name], groupings, by_topic)}
    own = {name for name, by in told.items() if by & regrouped and groupings[name].circular}
    for hears in (False, True):
        these = {name: by for name, by in told.items() if bool(by & regrouped) is hears and name not in own}
        inputs = every if hears else frozenset[str]().union(*these.values())
        if these:
            found.append(WatermarkWriter(task, {name: groupings[name] for name in these}, inputs, hears=hears))
    found += [
        WatermarkWriter(task, {name: groupings[name]}, frozenset(told[name]), hears=True, own=True)
        for name in sorted(own)
    ]
    return tuple(found)


def watermark_topics(
    frames: Sequence[StreamingDataFrame], groupings: Mapping[str, Grouping], by_topic: Mapping[str, StreamingDataFrame]
) -> dict[str, Grouping]:
    """Returns the inputs of a task that are repartition topics with watermarks, as a map from names to ``Grouping``."""
    regrouped = [frame for frame in frames if frame.topic.repartitions]
    return {one.topic.name: groupings[one.topic.name] for one in regrouped if _needs_time(one, groupings, by_topic)}


def _needs_time(
    frame: StreamingDataFrame, groupings: Mapping[str, Grouping], by_topic: Mapping[str, StreamingDataFrame]
) -> bool:
    """Whether this stream, or a stream downstream of it, needs stream time. Its topic then needs watermarks."""
    known = groupings.get(frame.topic.name)
    if known is not None and known.ordered:
        return True
    for node in frame.source.walk():
        options = frame.declared.get(node.store or "")
        if node.processing is not None or window_of(node) is not None:
            return True
        if options is not None and options.expires:
            return True
        behind = by_topic[node.topic.name] if node.topic is not None and node.topic.repartitions else None
        if behind is not None and _needs_time(behind, groupings, by_topic):
            return True
    return False


def processors_of(
    frames: Sequence[StreamingDataFrame],
    states: Mapping[str, StoreState],
    declared: DeclaredStores,
    time: TaskTime | None,
    times: RecordTimes,
) -> dict[int, Processor]:
    """Maps ``id(step)`` of each step with timers to the processor object (of the user's class) in this task.

    If a processor can set timers, also creates ``time.timers``.

    Raises:
        ProcessorInvalid: The user's factory function returned an object that is no processor.
    """
    found = {}
    for node in steps_of(frame.source for frame in frames):
        if node.processing is not None and node.store is not None and time is not None:
            made = found[id(node)] = Processor(node.processing, declared[node.store][0], time.stream, times.now_ms)
            if made.fires and time.timers is None:
                time.timers = TaskTimers(states, time.stream)
    return found


def add_steps(
    time: TaskTime,
    frame: StreamingDataFrame,
    source: Node,
    processors: Mapping[int, Processor],
    compiled: Callable[[Node, Timing], Run],
    timing: Timing,
    seen: set[int],
) -> None:
    """Compiles the steps after each window and timer, and adds them to ``time``. Skips steps whose id is in ``seen``.

    ``source`` is the root of the stream's steps, bound to the task's processors.
    """
    topic = frame.topic
    for node, declared in zip(source.walk(), frame.source.walk(), strict=True):
        if id(declared) in seen:
            continue
        seen.add(id(declared))
        if window_of(node) is not None:
            run = compiled(node, timing)
            windows = time.windows[node.store or ""]
            held, meets = time.held.get(node.store or ""), node.store in time.closings.meeting
            # ``keys_ahead`` has no ``due_at``, because the worker's clock makes its windows due, and not a message.
            # These windows therefore close at a commit.
            for closes, due_at in (
                (windows, windows.due_at),
                (windows.keys_ahead, None),
                (held, held.due_at if held is not None else None),
            ):
                if closes is not None:
                    steps = WindowSteps(topic.name, closes, run.function, topic.deserialize_key)
                    time.closings.add(replace(steps, due_at=due_at) if meets else steps)
        processor = processors.get(id(declared))
        if processor is not None and processor.fires and time.timers is not None:
            first = Node("source", children=[replace(node, function=processor.on_timer)])
            run = compiled(first, replace(timing, stream=None))
            time.timers.add(TimerSteps(topic.name, processor.timers, run.function, topic.deserialize_key))


def schedules_of(
    frames: Sequence[StreamingDataFrame],
    partition: int,
    backend: TaskStore | None,
    states: dict[str, StoreState],
    outboxes: Outboxes,
    record_bytes_max: Mapping[str, int],
    times: RecordTimes,
) -> TaskSchedules | None:
    """Returns the schedules of a task; None without a schedule.

    Replaces, in ``states``, the objects of the stores that the schedules use. The new objects can also store the
    progress of each schedule. A schedule of the whole processor runs in the task of partition 0.
    """
    known = schedules_by_store(frames[0]) if backend is not None else {}
    own = {store: schedules for store, (_, schedules) in known.items() if store in states}
    if not own or backend is None:
        return None
    stores: dict[str, DeclaredState] = {}
    for store, schedules in own.items():
        states[store] = state = DeclaredState(states[store], None)
        stores |= dict.fromkeys((each.name for each in schedules), state)
    readable, others = _readable_stores(frames, states, backend)
    reaches = []
    for schedule in (each for schedules in own.values() for each in schedules):
        if schedule.per == "task" or partition == 0:
            limits = outboxes.add, record_bytes_max, times
            senders = {topic.name: topic_sender(topic, *limits) for topic in schedule.outputs}
            reaches.append(Reach(schedule, partition, readable, others, senders, times.now_ms))
    if not reaches:
        return None
    made = TaskSchedules(reaches, stores, states, outboxes)
    made.load()
    return made


def sources_of(
    frames: Sequence[StreamingDataFrame],
    partition: int,
    states: dict[str, StoreState],
    outboxes: Outboxes,
    record_bytes_max: Mapping[str, int],
    times: RecordTimes,
) -> TaskSources | None:
    """Returns the sources of a task; None without a source.

    Replaces, in ``states``, the objects of the stores that the sources use. The new objects can also store the progress
    of each source. A source runs in the task of partition 0 of its topic.
    """
    own = {store: each for store, each in sources_by_store(frames[0]).items() if store in states}
    sources = []
    for store, each in own.items():
        states[store] = state = DeclaredState(states[store], None)
        limits = Limits(record_bytes_max.get(each.topic.name, UNLIMITED), times)
        sources.append((each, state, limits))
    if not sources or partition != 0:
        return None
    made = TaskSources(sources, outboxes, times.clock)
    made.load()
    return made


def _readable_stores(
    frames: Sequence[StreamingDataFrame], states: Mapping[str, StoreState], backend: TaskStore
) -> tuple[dict[str, ReadableStore], dict[str, str]]:
    """Returns the stores that schedules can read. For each other store of the task, returns a text about its content.

    The text is a part of the error that a schedule gets when it reads such a store.
    """
    readable, others = dict[str, ReadableStore](), dict[str, str]()
    for node in steps_of(frame.source for frame in frames):
        if node.store is None or node.store not in states:
            continue
        aggregation, form = aggregation_of(node), node.store_use.form
        if node.kept is not None and aggregation is None:
            others[node.store] = node.kept.called
        elif form not in (StoreForm.VALUES, StoreForm.ROWS):
            others[node.store] = "records of a built-in step"
        else:
            shown = None if aggregation is None else aggregation.results
            readable[node.store] = ReadableStore(states[node.store], backend, shown)
    return {name: each for name, each in readable.items() if name not in others}, others
