"""Draws a topology for each seed: steps of the grammar that fit together, and messages.

The docs promise one result for each topology and its messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tests.combinations.grammar import CHOICES, OF_TABLES, OPENINGS, SOURCES, STEPS, TOPICS, Kind, Mark, Step
from tests.combinations.later_draws import (
    by_the_clock,
    with_a_staging_sink,
    with_columns,
    with_durable_calls,
    with_sinks_and_places,
)
from tests.combinations.messages import Needs, draw_messages
from tests.combinations.scope import Made, Scope, Tasks
from tests.combinations.topology import Compared, Line, Topology

_WORD = re.compile(r"\b[A-Z_]{2,}\b")
_OPERAND = re.compile(r"\{([a-z]+)\}")
_BY_NAME = {step.name: step for step in (*STEPS, *SOURCES)}
#: The kinds of streams or tables that each placeholder of a template accepts.
_KINDS: dict[str, tuple[Kind, ...]] = {
    "s": ("stream",),
    "r": ("stream",),
    "t": ("table", "history"),
    "u": ("table", "history"),
    "w": ("global",),
}


#: The first steps of a topology: step names, and the names of the streams or tables that each step uses.
Opening = Sequence[tuple[str, str]]


def draw_topology(seed: int) -> Topology:
    """Draws the topology of a seed."""
    random = Random(f"topology of {seed}")
    groups = random.random() < 0.5
    scope = Scope(random, random.choice([1, 2, 2, 3, 4]), groups)
    opening = random.choice(OPENINGS) if random.random() < 0.4 else ()
    if any(_BY_NAME[name].marks & Mark.GROUPS for name, _ in opening):
        groups = scope.groups = True
    alone = bool(opening) and bool(Mark.WINDOW & _BY_NAME[opening[0][0]].marks)
    scope.wild = groups and random.random() < (0.5 if alone else 0.2)
    _add_sources(scope, random.choice([1, 2, 2, 3]), opening)
    _add_opening(scope, opening)
    if alone:  # the engine computes a window by columns (in batches) only if no other step reads its stream
        scope.closed.add(scope.made[0].name)
    allowed = [step for step in STEPS if groups or not Mark.GROUPS & step.marks]
    if groups:  # if a topology may have a grouping, it mostly gets one
        allowed += 2 * [step for step in STEPS if Mark.GROUPS & step.marks]
    calls = [step for step in STEPS if Mark.FIRST & step.marks]
    if random.random() < 0.2:
        streams = [each for each in scope.made if each.kind == "stream"]
        _fits(scope, random.choice(calls), [random.choice(streams)])
    for _ in range(random.randint(2, 8)):
        _add_step(scope, allowed)
    _with_tables(scope, seed)
    _add_outputs(scope)
    return _finished(scope, seed)


def _add_sources(scope: Scope, count: int, opening: Opening) -> None:
    streams = 2 if any("b" in of.split() for _, of in opening) else 1
    for number in range(max(count, streams)):
        drawn = scope.random.choices(SOURCES, [each.weight for each in SOURCES])[0]
        step = SOURCES[0] if number < streams else drawn
        topic = scope.new("t" if step.gives == "stream" else "r")
        name = scope.new("s")
        declared = scope.random.choice(
            TOPICS[:1] if (scope.groups and not scope.wild) or step.gives != "stream" else TOPICS
        )
        scope.lines.append(Line("topic", declared.replace("{topic}", repr(topic)), name=topic))
        code = step.code.replace("{topic}", "{0}").replace("{new}", repr(name))
        stores = (name,) if Mark.STATE & step.marks and step.gives == "table" else ()
        scope.lines.append(Line(step.name, code, (topic,), name, stores=stores))
        scope.made.append(Made(name, step.gives, frozenset() if step.gives == "global" else frozenset({topic})))
        if step.gives != "global":
            scope.tasks.append(Tasks({topic}))
        if step.gives == "history":
            scope.marks |= Mark.JOIN


def _add_opening(scope: Scope, opening: Opening) -> None:
    """Adds the steps of an opening (a fixed first part of a topology). Stops at the first step that does not fit."""
    streams = [each for each in scope.made if each.kind == "stream"]
    found = {"a": streams[0], "b": streams[-1] if len(streams) < 2 else streams[1]}
    for number, (name, of) in enumerate(opening):
        if not _fits(scope, _BY_NAME[name], [found[each] for each in of.split()]):
            return
        if scope.made[-1].odd:
            _fits(scope, _BY_NAME["shape"], [scope.made[-1]])
        found[str(number)] = scope.made[-1]


def _add_step(scope: Scope, allowed: Sequence[Step]) -> None:
    for _ in range(12):
        step = scope.random.choices(allowed, [each.weight for each in allowed])[0]
        operands = _operands(scope, step)
        if operands is not None and _fits(scope, step, operands):
            return


def _with_tables(scope: Scope, seed: int) -> None:
    """Adds tables that are made of other tables, in some topologies.

    If the topology has no table yet, the first added table is made of a stream.

    These choices use their own random generator. The other random choices of a seed stay the same, so the known seeds
    of planted bugs still find their bugs.
    """
    random = Random(f"788 tables of {seed}")
    if random.random() >= TABLES_SHARE:
        return
    scope.random, drawn = random, scope.random
    if not any(each.kind in _KINDS["t"] for each in scope.made) or random.random() < 0.3:
        _add_step(scope, [_BY_NAME["to_table"]])
    steps = [each for each in OF_TABLES if scope.groups or not Mark.GROUPS & each.marks]
    for _ in range(random.randint(1, 3)):
        _add_step(scope, steps)
    if scope.groups and random.random() < 0.5:
        _add_step(scope, [_BY_NAME["table join on"]])
    scope.random = drawn


def _operands(scope: Scope, step: Step) -> list[Made] | None:
    found = list[Made]()
    for place in _places(step):
        choice = [each for each in scope.made if each.kind in _KINDS[place] and each.name not in scope.closed]
        # Newer streams and tables are chosen more often, so that long chains of steps result.
        choice += choice[-2:]
        others = [each for each in choice if each not in found]
        if others and scope.random.random() < 0.9:
            choice = others
        if not choice:
            return None
        found.append(scope.random.choice(choice))
    return found


def _fits(scope: Scope, step: Step, of: list[Made]) -> bool:
    """Adds a step if the docs promise one result for it at this place. Returns whether it was added."""
    first, marks = of[0], step.marks
    if any(each.odd for each in of) and step.name != "shape":
        return False
    if Mark.FIRST & marks and (not first.first or first.grouped or not _is_only(scope, first)):
        return False
    if Mark.FAILS & marks and any(line.step == "table source" for line in scope.lines):
        return False  # the source topic of a restored table must have no messages that a step discards or rejects
    if Mark.WINDOW & marks and any(each.window for each in of):
        return False
    if Mark.GROUPS & marks and step.gives == "stream" and any(each.changes for each in of):
        return False
    if Mark.SOURCE & marks and (first.grouped or first.window):
        return False
    if step.name == "to_stream" and first.last:
        return False  # the outputs of `to_stream` also contain the deletions of the table's rows
    if step.name == "table join on" and not _fits_on(scope, of):
        return False
    if len(of) == 2 and of[0].topics & of[1].topics & scope.writers.keys() and _is_as_of(step, of[1]):
        return False  # the engine refuses an as-of join of two branches of one grouping
    if not scope.wild and not _is_determined(scope, step, of):
        return False
    topics = set().union(*(each.topics for each in of))
    together = topics if Mark.STATE & marks or Mark.JOIN & marks else set[str]()
    tasks, circle = scope.merged(together or {min(topics)}) if topics else Tasks(set()), False
    if together and topics:
        circle = scope.is_circle(tasks)
        if circle and not scope.of_joins.isdisjoint(topic for each in scope.before(tasks) for topic in each.topics):
            # The engine refuses a task that reads the repartition topic of a join with `on=` and also writes to it.
            return False
        if not scope.wild and not _is_determined_in_task(scope, step, of, tasks, circle=circle):
            return False
    _place(scope, step, of, tasks, circle=circle)
    if together and topics:
        made = scope.merge(together)
        made.timed |= bool(Mark.TIME & marks)
        made.joins |= bool(Mark.JOIN & marks) and not circle
        scope.circle |= circle
    return True


#: Steps on tables whose final rows follow from the source table's final rows. The order of the changes does not matter.
_OF_ROWS = tuple(step.name for step in OF_TABLES)


def _is_determined(scope: Scope, step: Step, of: list[Made]) -> bool:
    """Whether the docs promise one result for a step that reads these streams and tables, under every schedule."""
    marks = step.marks
    if Mark.ORDER & marks and not all(each.ordered for each in of):
        return False
    if any(each.last for each in of) and step.name not in ("shape", "apply", "filter", *_OF_ROWS):
        return False
    if step.name in _OF_ROWS and not all(each.ordered or each.last for each in of):
        return False
    if Mark.FAILS & marks and any(each.loose or not each.ordered for each in of):
        # The order of messages, or the moment when results are sent, may decide which message fails.
        return False
    return not any(each.loose for each in of) or _fits_loose(step, of)


def _is_determined_in_task(scope: Scope, step: Step, of: list[Made], tasks: Tasks, *, circle: bool) -> bool:
    """Whether the docs promise one result for a step of this task, which may read several inputs."""
    grouped = scope.is_grouped(tasks)
    if grouped and (tasks.timed or Mark.TIME & step.marks):
        return False
    if circle:
        return step.name in _CIRCLES and not any(each.joins for each in scope.before(tasks))
    if grouped and Mark.JOIN & step.marks and len(of) == 2 and of[0].topics & of[1].topics:
        return False  # rows of an interval join may have equal times, and the order of equal times is not promised
    if step.name == "join_interval" and grouped and scope.origins(of[0].topics) & scope.origins(of[1].topics):
        return False  # rows of two groupings of one stream may have equal times, whose order is not promised
    if grouped and _looks_up(step) and scope.leads_to(of[1].topics, of[0].topics):
        return False  # two streams that look up rows of each other: no reading order is right for both
    plain_table = step.name == "join_table" and of[1].kind == "table"
    return not (plain_table and grouped and scope.partitions > 1)


def _looks_up(step: Step) -> bool:
    """Whether a step looks up the row that its right side (a stream or table) had at the time of the left message."""
    return step.name.startswith("join_asof") or step.name == "join_table"


def _is_as_of(step: Step, right: Made) -> bool:
    """Whether a step looks up the newest row of its right side, at or before the time of the left message."""
    return step.name.startswith("join_asof") or (step.name == "join_table" and right.kind == "history")


def _fits_on(scope: Scope, of: list[Made]) -> bool:
    """Whether two tables can be joined by a field of the row.

    They must be in two tasks, and neither may come after a ``group_by``.
    """
    tasks = [scope.merged(set(each.topics)) for each in of]
    apart = not tasks[0].topics & tasks[1].topics
    return apart and not any(scope.is_grouped(each) or each.timed or each.joins for each in tasks)


def _is_only(scope: Scope, first: Made) -> bool:
    """Whether a stream is the only branch of its topics."""
    others = [each for each in scope.made if each.topics & first.topics and each is not first]
    return not scope.used[first.name] and all(scope.used[each.name] == 1 for each in others)


#: Steps whose results depend on when a message arrives, in addition to the steps with the mark ``TIME``.
_IN_TIME = {"to_table", "to_table history", "join_table", "concat", "store shared", "join_interval"}


def _fits_loose(step: Step, of: list[Made]) -> bool:
    """Whether a step's results stay the same when the results of a window arrive at another moment.

    The right side of an as-of join must not contain results of windows, because they arrive after their event times.
    """
    if Mark.TIME & step.marks or step.name in _IN_TIME:
        return False
    return not step.name.startswith("join_asof") or not (of[1].loose or of[1].window)


#: Although these steps have no state, `apply_async` and `join_lookup` may not follow them.
_NOT_FIRST = {"apply expand", "to_stream", "concat", "join_table global"}
#: Steps of two streams that add a step not only to the left stream, but also to the right (second) stream.
_STEPS_OF_THE_RIGHT = {"join_asof", "join_asof tolerance", "store shared"}
#: The share of topologies with tables that are made of other tables.
TABLES_SHARE = 0.3
#: A topology with more interval joins than ``JOINS_IN_A_CHAIN`` gets ``FEW`` messages, because each join multiplies the
#: rows of a key.
JOINS_IN_A_CHAIN, FEW = 2, 20
#: Steps for which the docs promise one result even if a task waits for its own output.
_CIRCLES = {"join_table", "to_table history", "tumbling_window", "hopping_window", "apply sums"}


def _place(scope: Scope, step: Step, of: list[Made], tasks: Tasks, *, circle: bool) -> None:
    first = of[0]
    grouped = any(each.grouped for each in of) or scope.is_grouped(tasks)
    name = scope.new("s")
    late = any(each.late for each in of)
    unordered = (grouped and scope.partitions > 1) or late or not all(each.ordered for each in of)
    twins = any(each.twins for each in of)
    cases = {
        "circle": circle,
        "twins": unordered and twins,
        "unordered": unordered,
        "late": late,
        "groups": scope.groups,
    }
    code, used = _code(scope, step, name, [case for case, holds in cases.items() if holds and not scope.wild])
    shown = (name,) if Mark.STATE & step.marks and not Mark.HIDDEN & step.marks and step.gives != "history" else ()
    if step.name == "store ttl" or (step.name.startswith("session_window") and not first.ordered):
        shown = ()
    scope.lines.append(Line(step.name, code, tuple(each.name for each in of[:used]), name, stores=shown))
    scope.used.update(each.name for each in of)
    scope.marks |= step.marks
    topics = frozenset().union(*(each.topics for each in of))
    ordered = all(each.ordered for each in of) and (step.name != "concat" or not grouped)
    ordered = ordered and not Mark.LOOSE & step.marks and (len(of) == 1 or not any(each.loose for each in of))
    for each in of:  # after a new step, the stream must be grouped again, even if it is already grouped by that field
        if step.name.startswith("to_table") or (each is not first and step.name in _STEPS_OF_THE_RIGHT):
            scope.fields.pop(each.name, None)
    if _looks_up(step):
        for topic in first.topics:
            scope.rights.setdefault(topic, set()).update(of[1].topics)
    if Mark.FIRST & step.marks:
        scope.closed.update(each.name for each in scope.made if each.topics & first.topics)
    by = code.split("'")[1] if step.name == "group_by" else ""
    again = bool(by) and scope.fields.get(first.name) == by  # the stream is already grouped by this field
    if by:
        scope.fields[name] = by
    if Mark.GROUPS & step.marks and not again:
        topic = f"group of {name}"
        scope.writers[topic] = set(topics)
        topics, scope.tasks = frozenset({topic}), [*scope.tasks, Tasks({topic})]
        if step.gives == "table":
            scope.of_joins.add(topic)
        if step.name == "table join on":
            scope.task_of(min(of[1].topics)).topics.add(f"subscriptions of {name}")
            scope.writers[f"subscriptions of {name}"] = set(first.topics)
            scope.of_joins.add(f"subscriptions of {name}")
            for each in of:
                scope.task_of(min(each.topics)).joins = True
        ordered = ordered and scope.partitions == 1 and len(scope.task_of(min(first.topics)).topics) == 1
        ordered = ordered and len(first.topics) == 1 and not first.loose
    if Mark.IN_PLACE & step.marks:
        scope.closed.add(first.name)
    scope.made.append(
        Made(
            name,
            step.gives or "stream",
            topics,
            ordered=ordered and not (Mark.JOIN & step.marks and grouped),
            first=first.first
            and not step.marks & (Mark.STATE | Mark.FIRST | Mark.JOIN)
            and step.name not in _NOT_FIRST,
            window=any(each.window for each in of) or bool(Mark.WINDOW & step.marks),
            odd=(bool((Mark.WINDOW | Mark.ODD) & step.marks)) if step.name != "shape" else False,
            last=any(each.last for each in of)
            or (bool(Mark.LAST & step.marks) and (not first.ordered or step.gives == "table")),
            grouped=grouped or bool(Mark.GROUPS & step.marks),
            loose=any(each.loose for each in of)
            or "partition" in code
            or bool(Mark.LOOSE & step.marks)
            or "suppress" in code
            or _is_of_long_ago(scope, step)
            or _is_late(scope, step, code),
            late=late or _is_late(scope, step, code),
            changes=step.name == "to_stream" or any(each.changes for each in of),
            twins=step.name == "join_interval" or twins,
        )
    )
    if scope.made[-1].odd and scope.random.random() < 0.5:
        _fits(scope, _BY_NAME["shape"], [scope.made[-1]])


def _places(step: Step) -> list[str]:
    """Return the placeholders in a step's code, for the streams and tables that the step uses.

    The placeholder of the stream to which the step is added comes first.
    """
    found = dict.fromkeys(place for place in _OPERAND.findall(step.code) if place in _KINDS)
    return sorted(found, key="strwu".index)


def _is_late(scope: Scope, step: Step, code: str) -> bool:
    """Whether a step sends late rows: outer rows (without a match) of an interval join.

    These rows come later than other rows by the interval plus the grace.
    """
    return scope.groups and step.name == "join_interval" and "'inner'" not in code


def _is_of_long_ago(scope: Scope, step: Step) -> bool:
    """Whether results may be older than every grace: those of sessions and count windows may start long before."""
    return scope.groups and ("count_window" in step.name or "session" in step.name)


def _code(scope: Scope, step: Step, name: str, cases: Sequence[str]) -> tuple[str, int]:
    """The code of a step, and the number of its numbered placeholders for the streams and tables that it uses."""
    places = _places(step)
    code = step.code

    def chosen(found: re.Match[str]) -> str:
        word = found[0]
        if word not in CHOICES:
            return word
        choices = [CHOICES[f"{word} {case}"] for case in cases if f"{word} {case}" in CHOICES]
        made = scope.random.choice([*choices, CHOICES[word]][0])
        return _WORD.sub(chosen, made) if word == "COLUMNS" else made

    code = _WORD.sub(chosen, code)
    for index, place in enumerate(places):
        code = code.replace(f"{{{place}}}", f"{{{index}}}")
    return code.replace("{new}", repr(name)), len(places)


def _add_outputs(scope: Scope) -> None:
    for each in [each for each in scope.made if each.kind == "table" and each.last]:
        out = scope.new("o")
        code = f"{{0}}.to_stream().to_topic(app.topic({out!r}))"
        scope.lines.append(Line("to_topic", code, (each.name,), sends=out, compared="order" if scope.wild else "last"))
    leaves = [each for each in scope.made if each.kind == "stream" and not scope.used[each.name]]
    leaves += [
        each for each in scope.made if each.kind == "stream" and each not in leaves and scope.random.random() < 0.15
    ]
    for each in leaves:
        if each.name in scope.closed and scope.used[each.name]:
            continue
        _add_output(scope, each)


def _add_output(scope: Scope, stream: Made) -> None:
    out = scope.new("o")
    with_key = not stream.odd and scope.random.random() < 0.15 and not stream.last
    # With a chosen topic, some values go to another topic. The last value in this topic may then not be the last value
    # of its key.
    is_chosen = not stream.last and Random(f"{out} of {stream.name}: {len(scope.lines)}").random() < 0.15
    plain = "to_topic chosen" if is_chosen else "to_topic"
    step = _BY_NAME["to_topic key" if with_key else plain]
    together = len({id(scope.task_of(topic)) for topic in stream.topics}) == 1
    compared: Compared = (
        "order"
        if scope.wild
        else "last"
        if stream.last
        else "order"
        if stream.ordered and together and not with_key
        else "each"
    )
    code = step.code.replace("{s}", "{0}").replace("{out}", repr(out))
    scope.lines.append(Line(step.name, code, (stream.name,), sends=out, compared=compared))


def _finished(scope: Scope, seed: int) -> Topology:
    topics = [line.name for line in scope.lines if line.step == "topic"]
    grouped = bool(scope.writers)
    alone = all(len(each.topics) == 1 for each in scope.tasks)
    fails = bool(Mark.FAILS & scope.marks)
    text = "'str'" in "".join(line.code for line in scope.lines)
    random = Random(f"messages of {seed}")
    needs = Needs(
        sorted=not scope.wild
        and (
            (bool(Mark.JOIN & scope.marks) and (grouped or any(each.loose for each in scope.made)))
            # A join of two tables sends a row for each change of either table, so the order of messages matters.
            or (grouped and any(line.step == "table join" for line in scope.lines))
        ),
        unique=(grouped and not scope.wild) or random.random() < 0.4,
        calm=scope.groups and not scope.wild,
        plain=scope.groups and not scope.wild,
        text=text,
        texts="join_table global" in {line.step for line in scope.lines},
        spoilt=fails,
    )
    settings: dict[str, Any] = {"dead_letter_topic": "dead"} if fails else {}
    messages = draw_messages(random, topics, scope.partitions, needs)
    if sum(line.step == "join_interval" for line in scope.lines) > JOINS_IN_A_CHAIN:
        messages = tuple(each for at, each in enumerate(messages) if at < FEW or (each.key or b"")[:1] == b"z")
    closed = bool(messages) and bool(messages[-1].key) and messages[-1].key[:1] == b"z"
    holds = {
        "alone": alone,
        "grouped": grouped,
        "unique": needs.unique,
        "calm": needs.calm,
        "closed": closed,
        "wild": scope.wild,
    }
    rules = {rule for rule, is_held in holds.items() if is_held}
    # joins read inputs by the records' own times, so `set_timestamp` must not change them
    if Mark.JOIN & scope.marks and not scope.wild:
        scope.lines = [replace(each, code=each.code.replace("(later)", "(unmoved)")) for each in scope.lines]
    with_columns(scope, seed)
    with_sinks_and_places(scope, seed)
    with_a_staging_sink(scope, seed)
    made = Topology(
        tuple(with_durable_calls(by_the_clock(scope, line, seed), seed) for line in scope.lines),
        dict.fromkeys(topics, scope.partitions),
        messages,
        settings,
        frozenset(rules),
    )
    return made.pruned()
