"""Changes to a topology's declaration that must not change its results, according to the docs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import msgspec

from tests.combinations.functions import Record
from tests.combinations.grammar import STEPS, Mark
from tests.combinations.topology import Line, Message, Topology, has_outer_rows

_MARKS = {step.name: step.marks for step in STEPS}
#: Properties (marks) of steps whose results depend on stream time, or that fail for some messages. A change of the
#: topology may change the results of these steps.
_TIMED = Mark.TIME | Mark.FAILS


def in_other_order(topology: Topology, random: Random) -> Topology | None:
    """Declares the inputs in another order.

    The change applies only if event times are unique. Of two messages with equal times, the input that is declared
    first is read first.
    """
    if "unique" not in topology.rules:
        return None
    pairs = _declared(topology)
    if len(pairs) < 2:
        return None
    random.shuffle(pairs)
    rest = topology.lines[2 * len(pairs) :]
    return replace(topology, lines=(*(line for pair in pairs for line in pair), *rest))


def _declared(topology: Topology) -> list[tuple[Line, Line]]:
    """Return the pairs of lines that declare an input: a topic, and a stream or table of this topic.

    These lines are at the start of the topology.
    """
    found, lines = list[tuple[Line, Line]](), list(topology.lines)
    while len(lines) > 1 and lines[0].step == "topic" and lines[1].of == (lines[0].name,):
        found.append((lines[0], lines[1]))
        lines = lines[2:]
    return found


def with_partitions(topology: Topology, random: Random) -> Topology | None:
    """Gives the inputs another number of partitions.

    The change applies only if no message is late and all windows close at the end.
    """
    [count] = set(topology.partitions.values()) or {0}
    if not _is_timeless(topology) or _has_late_rows(topology):
        return None
    if any("placed" in line.code for line in topology.lines):
        return None  # the offset of a message depends on the number of partitions, and `placed` shows offsets
    others = [each for each in (1, 2, 3, 4) if each != count]
    if "grouped" in topology.rules:
        others = [each for each in others if (each == 1) == (count == 1)]
    if not others:
        return None
    chosen = random.choice(others)
    return replace(topology, partitions=dict.fromkeys(topology.partitions, chosen))


def _is_timeless(topology: Topology) -> bool:
    """Whether results do not depend on stream time: no message is late, and all windows close at the end."""
    timed = any(_TIMED & _MARKS.get(line.step, Mark.NONE) for line in topology.lines)
    return {"closed", "calm"} <= topology.rules and not timed


def _has_late_rows(topology: Topology) -> bool:
    """Whether a join may get late rows.

    They come from messages out of order, from windows, or from outer rows of an interval join.
    """
    marks = [_MARKS.get(line.step, Mark.NONE) for line in topology.lines]
    windows = "join_interval" in topology.steps and any(Mark.WINDOW & each for each in marks)
    joins = any(Mark.JOIN & each for each in marks)
    return windows or has_outer_rows(topology.lines) or (joins and not _is_sorted(topology.messages))


def with_copy(topology: Topology, random: Random) -> Topology | None:
    """Lets a branch read a copy of its topic instead of the topic itself."""
    if any(Mark.FAILS & _MARKS.get(line.step, Mark.NONE) for line in topology.lines):
        return None
    if "set_timestamp" in topology.steps:
        return None
    if topology.closes_when_idle:  # windows that close in a silence move stream time in all branches of their topic
        return None
    makers = {line.name: line for line in topology.lines if line.step == "dataframe"}
    choice = [
        (index, makers[line.of[0]])
        for index, line in enumerate(topology.lines)
        if len(line.of) == 1 and line.of[0] in makers and _users(topology, line.of[0]) > 1
    ]
    random.shuffle(choice)
    for index, source in choice:
        made = _copied(topology, index, source)
        if made is not None:
            return made
    return None


def _users(topology: Topology, name: str) -> int:
    return sum(name in line.of for line in topology.lines)


def _copied(topology: Topology, index: int, source: Line) -> Topology | None:
    branch, [topic] = topology.lines[index], source.of
    copy, stream = f"{topic}c", f"{source.name}c"
    mine, theirs = {branch.name} - {""}, {source.name}
    for at, line in enumerate(topology.lines):
        if at == index:
            continue
        of_mine, of_theirs = bool(mine.intersection(line.of)), bool(theirs.intersection(line.of))
        if of_mine and of_theirs and "left_only" not in line.code:
            return None
        # If one input of a `concat` read a copy, no task would read all inputs of the `concat`. Then the messages would
        # have no common order.
        if line.step == "concat" and (of_mine or of_theirs):
            return None
        if line.name:
            (mine if of_mine else theirs if of_theirs else set[str]()).add(line.name)
    declared = next(line for line in topology.lines if line.name == topic)
    lines = list(topology.lines)
    lines[index] = replace(branch, of=(stream,))
    # Of two messages with equal times, the stream that is declared first is read first. So the copy is declared next to
    # its topic.
    at = lines.index(source) + 1
    lines[at:at] = [
        replace(declared, code=declared.code.replace(repr(topic), repr(copy)), name=copy),
        replace(source, of=(copy,), name=stream),
    ]
    messages = [
        made
        for each in topology.messages
        for made in ([each, replace(each, topic=copy)] if each.topic == topic else [each])
    ]
    made = replace(
        topology,
        lines=tuple(lines),
        partitions={**topology.partitions, copy: topology.partitions[topic]},
        messages=tuple(messages),
    )
    alone = frozenset({topic}) in topology.described().tasks
    if not alone and not _is_timeless(topology):
        return None
    together = any({topic, copy} <= task for task in made.described().tasks)
    return None if together and not _is_sorted(topology.messages) else made


def _is_sorted(messages: tuple[Message, ...]) -> bool:
    times = [each.at for each in messages]
    return times == sorted(times)


def with_msgpack(topology: Topology, random: Random) -> Topology | None:
    """Encodes some inputs as msgpack instead of JSON.

    Topologies with dead letters are left out, because a dead letter contains the bytes of the input.
    """
    if topology.settings.get("dead_letter_topic"):
        return None
    # a table that is restored from its topic reads only JSON
    sources = {name for line in topology.lines if line.step == "table source" for name in line.of}
    plain = [line for line in topology.lines if line.code == f"app.topic({line.name!r})" and line.name not in sources]
    changed = {line.name for line in plain if line.name in topology.partitions and random.random() < 0.7}
    try:
        messages = tuple(
            replace(each, value=msgspec.msgpack.encode(msgspec.json.decode(each.value)))
            if each.topic in changed and each.value is not None
            else each
            for each in topology.messages
        )
    # the input has an unreadable message, or a number that msgpack cannot encode
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
        return None
    lines = tuple(
        replace(line, code=f"app.topic({line.name!r}, value_deserializer='msgpack')") if line.name in changed else line
        for line in topology.lines
    )
    return replace(topology, lines=lines, messages=messages) if changed else None


#: ``_KEEPS``: steps that read fields and pass values on unchanged. ``_MAKES``: steps that read fields and return other
#: values.
_KEEPS, _MAKES = ("group_by", "drop_duplicates"), ("aggregate", "window", "moving_average")
#: Joins whose functions accept both dicts and instances of a class, and return dicts.
_JOINS = ("join_asof", "join_interval")
#: Matches the code of functions of these tests that read columns by name. These functions accept both dicts and
#: instances of a class.
_BY_NAME = re.compile(r"(kept|projected)\((.*)\)")
#: Names of functions of these tests that accept only dicts.
_TAKES_OBJECTS = ("length", "enough", "third")


def with_instances(topology: Topology, random: Random) -> Topology | None:
    """Decodes some inputs as instances of a class instead of dicts.

    Only inputs that no user function reads are changed.
    """
    if topology.settings.get("dead_letter_topic"):
        return None
    topics = {line.name for line in topology.lines if line.code == f"app.topic({line.name!r})"}
    changed = {name for name in topics & topology.partitions.keys() if _reads_fields(topology, name)}
    changed = {name for name in sorted(changed) if random.random() < 0.7}
    for each in topology.messages:
        if each.topic in changed and each.value is not None and not _is_record(each.value):
            return None
    lines = tuple(
        replace(line, code=f"app.topic({line.name!r}, value=Record)") if line.name in changed else line
        for line in topology.lines
    )
    return replace(topology, lines=lines) if changed else None


def _reads_fields(topology: Topology, name: str) -> bool:
    """Whether all steps behind a topic or stream read fields by name only."""
    users = [line for line in topology.lines if name in line.of]
    return bool(users) and all(_is_reader(topology, line) for line in users)


def _is_reader(topology: Topology, line: Line) -> bool:
    """Whether a step, and each step that gets its values, reads fields only by name."""
    code, makes_objects = line.code, False
    if (wrapped := _BY_NAME.fullmatch(code)) is not None:
        code, makes_objects = wrapped[2], wrapped[1] == "projected"
    if line.step.startswith(_JOINS):
        return True
    if len(line.of) != 1 or any(each in code for each in _TAKES_OBJECTS):
        return False
    if line.step == "dataframe":
        return code == "app.dataframe({0})" and (makes_objects or _reads_fields(topology, line.name))
    if not code.startswith("{0}."):
        return False  # the line calls a function of these tests, and this function adds steps to the stream
    if line.step in _KEEPS:
        return makes_objects or _reads_fields(topology, line.name)
    return any(each in line.step for each in _MAKES)


def _is_record(raw: bytes) -> bool:
    try:
        read = msgspec.json.decode(raw, type=Record)
        return bool(msgspec.json.decode(msgspec.json.encode(read)) == msgspec.json.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


#: The code of steps with functions, and the code of equivalent steps with columns.
_BY_COLUMNS = {
    "{0}.apply(marked)": "marked_by_columns({0})",
    "{0}.apply(changed)": "changed_by_columns({0})",
    "{0}.update(touched)": "touched_by_columns({0})",
    "{0}.filter(most)": "{0}[{0}['n'] % 5]",
}


def with_columns(topology: Topology, random: Random) -> Topology | None:
    """Writes some functions of a value as expressions of columns."""
    lines = tuple(
        replace(line, code=_by_columns(line.code)) if random.random() < 0.8 else line for line in topology.lines
    )
    return replace(topology, lines=lines) if lines != topology.lines else None


def _by_columns(code: str) -> str:
    for function, columns in _BY_COLUMNS.items():
        code = code.replace(function, columns)
    return code


#: Matches the code of a step with a stateful function, and the name of its store.
_WITH_STATE = re.compile(r"(\{0\}\.(?:apply|update|filter)\(\w+, stateful=True, store=)('[^']+')\)")


def with_codecs(topology: Topology, random: Random) -> Topology | None:
    """Gives some stores of functions another codec than JSON. With each codec, functions must read what they wrote."""
    if topology.settings.get("dead_letter_topic"):
        return None
    codecs = ("typed", "msgpack") if all(map(_fits_msgpack, topology.messages)) else ("typed",)
    chosen: dict[str, str] = {}

    def declared(found: re.Match[str]) -> str:
        store = found[2]
        if store not in chosen:
            chosen[store] = random.choice(codecs) if random.random() < 0.8 else ""
        return f"{found[1]}app.store({store}, codec={chosen[store]!r}))" if chosen[store] else found[0]

    lines = tuple(replace(line, code=_WITH_STATE.sub(declared, line.code)) for line in topology.lines)
    return replace(topology, lines=lines) if any(chosen.values()) else None


def _fits_msgpack(message: Message) -> bool:
    """Whether msgpack can encode the fields of a message: integers must fit into 64 bits."""
    try:
        return message.value is None or bool(msgspec.msgpack.encode(msgspec.json.decode(message.value)))
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
        return False


def with_schedules(topology: Topology, random: Random) -> Topology | None:
    """Adds a schedule (a function called by time) to each task.

    It reads the stores of the task's steps at any moment.
    """
    return replace(topology, lines=(*topology.lines, Line("schedule", "scheduled(app)")))


def with_source(topology: Topology, random: Random) -> Topology | None:
    """Adds a source to the topology. ``Trial`` checks that each of its messages is sent and processed once."""
    return replace(topology, lines=(*topology.lines, Line("source", "sourced(app)")))


def with_file_source(topology: Topology, random: Random) -> Topology | None:
    """Adds a ``FileSource`` with the numbers of ``with_source``."""
    return replace(topology, lines=(*topology.lines, Line("source", "sourced(app, 'file')")))


def with_table_source(topology: Topology, random: Random) -> Topology | None:
    """Adds a ``SqlSource`` with the numbers of ``with_source``."""
    return replace(topology, lines=(*topology.lines, Line("source", "sourced(app, 'table')")))


def with_http_source(topology: Topology, random: Random) -> Topology | None:
    """Adds an ``HttpSource`` that gets the numbers of ``with_source``, some of them again."""
    return replace(topology, lines=(*topology.lines, Line("source", "sourced(app, 'posts')")))


def with_charges(topology: Topology, random: Random) -> Topology | None:
    """Adds the source of ``with_source`` with durable calls, and a staging sink of their answers."""
    return replace(topology, lines=(*topology.lines, Line("source", "charged(app)")))


#: The changes that add a source of the numbers up to ``FED``.
SOURCES = frozenset({"source", "file_source", "table_source", "http_source", "charged"})
#: All changes by name. A change returns None if the docs do not promise equal results for the topology.
CHANGES: Mapping[str, Callable[[Topology, Random], Topology | None]] = {
    "order": in_other_order,
    "partitions": with_partitions,
    "copy": with_copy,
    "msgpack": with_msgpack,
    "instances": with_instances,
    "columns": with_columns,
    "codecs": with_codecs,
    "schedules": with_schedules,
    "source": with_source,
    "file_source": with_file_source,
    "table_source": with_table_source,
    "http_source": with_http_source,
    "charged": with_charges,
}


def changed_by(topology: Topology, names: tuple[str, ...], seed: int) -> Topology:
    """The topology with the named changes; changes that are not possible are skipped."""
    for name in names:
        topology = CHANGES[name](topology, Random(f"{name} of {seed}")) or topology
    return topology
