"""The grammar of generated topologies: a table of steps. A new step of the engine needs one more entry.

A template is the code of a step. ``{s}`` is a stream, ``{t}`` a table, ``{w}`` a global table, ``{r}`` a second stream;
``{new}`` is the name of its store or grouping. A word in capitals is drawn from ``CHOICES``. The docs promise less
order behind ``group_by``, and no order where streams of several tasks are merged. Steps marked ``ORDER`` are not placed
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Literal


class Mark(Flag):
    """Properties of a step."""

    NONE = 0
    #: The step's results depend on the order of a key's messages.
    ORDER = auto()
    #: The step has a store.
    STATE = auto()
    #: The step must come before state, outputs and branches of its stream.
    FIRST = auto()
    #: The step is a window, or its results are like those of a window: other fields, and event times in the past.
    WINDOW = auto()
    #: The step's results have other fields than messages, so only ``shape`` and outputs may follow.
    ODD = auto()
    #: The step's results depend on the stream time at which a message arrives, if the message is later than a grace.
    TIME = auto()
    #: The step reads two inputs in the order of their event times.
    JOIN = auto()
    #: The step cannot come behind ``group_by``.
    SOURCE = auto()
    #: The step fails for some messages.
    FAILS = auto()
    #: The step sends its records through a repartition topic.
    GROUPS = auto()
    #: Where the docs promise no order, only the last record of each key of the step is the same under each schedule.
    LAST = auto()
    #: The content of the step's store depends on the schedule. The docs promise only the step's results.
    HIDDEN = auto()
    #: The step changes its input value in place.
    IN_PLACE = auto()
    #: Some results of the step come with a commit, others with a message. So their order depends on the times of
    #: commits.
    LOOSE = auto()


FIRST, JOIN, STATE, TIME = Mark.FIRST, Mark.JOIN, Mark.STATE, Mark.TIME
#: Common combinations of marks. ``KEPT``: state that depends on the order of messages. ``ROWS``: results of an
#: aggregation. ``CLOSED``: a window that sends when it closes. ``SENT``: a window that sends with each message.
#: ``JOINED``: a join with a store.
KEPT, ROWS = Mark.ORDER | STATE, Mark.ORDER | STATE | Mark.ODD
CLOSED, SENT = STATE | Mark.WINDOW, Mark.ORDER | STATE | Mark.WINDOW
JOINED = JOIN | STATE | Mark.HIDDEN

Kind = Literal["stream", "table", "history", "global", ""]


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its name, template and properties, the kind of stream or table that it makes, and its weight in draws."""

    name: str
    code: str
    marks: Mark = Mark.NONE
    gives: Kind = "stream"
    weight: int = 4


_SESSION = "{s}.session_window(SHORT, GRACE, {new}, ON_LATE)"
SHARED = "({r}.update(remembered, stateful=True, store={new}), {s}.apply(recalled, stateful=True, store={new}))[1]"
_AGG = "agg(c=Count(), s=SUM, x=Max('n'), e=Earliest('n'))"

_GROUPS = (
    ".aggregate(c=Count(), s=Sum('n'), m=Mean('v'), f=Sum(length), x=Collect('n', limit=3), "
    "r=Reduce(with_row, of_row, subtractor=without_row), name={new}).map(as_row, {new} + '-shaped')"
)

#: Steps that make a table of a table. They are drawn last, with their own random generator, so that the other steps of
#: a seed stay as they were.
OF_TABLES: tuple[Step, ...] = (
    Step("table filter", "{t}.filter(most, {new})", STATE, "table", weight=3),
    Step("table map", "{t}.map(PLAIN, {new})", STATE, "table", weight=3),
    Step("table group_by", "{t}.group_by(FIELD)" + _GROUPS, STATE | Mark.GROUPS | Mark.LAST, "table", weight=5),
    Step(
        "table group_by function",
        "{t}.group_by(third, 'third')" + _GROUPS,
        STATE | Mark.GROUPS | Mark.LAST,
        "table",
        weight=2,
    ),
)

STEPS: tuple[Step, ...] = (
    # -- one stream, without state
    Step("apply", "{s}.apply(PLAIN)"),
    Step("apply in place", "{s}.apply(changed)", weight=3),
    Step("apply expand", "{s}.apply(halves, expand=True)", weight=2),
    Step("apply metadata", "{s}.apply(with_key, metadata=True)", weight=2),
    Step("apply fails", "{s}.apply(spoilt)", Mark.FAILS, weight=1),
    Step("update in place", "{s}.update(touched)", Mark.IN_PLACE, weight=2),
    Step("filter", "{s}.filter(most)"),
    Step("set_timestamp", "{s}.set_timestamp(later)", TIME | Mark.SOURCE, weight=2),
    Step("apply_async", "{s}.apply_async(asked, concurrency=CONCURRENCY, order=CALLS)", FIRST, weight=5),
    Step("join_lookup", "{s}.join_lookup(looked_up, {{'q': 'row'}}, on=ON, ttl=0, how=HOW)", FIRST, weight=3),
    # -- one stream, with state
    Step("apply stateful", "{s}.apply(STATEFUL, stateful=True, store={new})", KEPT),
    Step("apply sums", "{s}.apply(summed, stateful=True, store={new})", STATE, weight=2),
    Step("filter stateful", "{s}.filter(unseen, stateful=True, store={new})", KEPT, weight=2),
    Step(
        "store model",
        "{s}.apply(counted, stateful=True, store=app.store({new}, model={{'count': int}}))",
        KEPT,
        weight=2,
    ),
    Step("store shared", SHARED, KEPT | JOIN, weight=4),
    Step("store ttl", "{s}.filter(unseen, stateful=True, store=app.store({new}, ttl=SHORT))", KEPT | TIME, weight=3),
    Step("aggregate", "{s}.aggregate(n=Count(), s=SUM, l=Last('n'), r=Collect('n', limit=3), store={new})", ROWS),
    Step("aggregate columns", "{s}.aggregate(n=Count(), s=SUM, m=Mean('v'), x=Max('v'), store={new})", ROWS),
    Step(
        "aggregate sums",
        "{s}.aggregate(n=Count(), s=Sum('n'), i=Min('n'), store={new})",
        STATE | Mark.ODD | Mark.LAST,
        weight=2,
    ),
    Step("process", "{s}.process(Alarm, store={new})", KEPT | TIME),
    Step("drop_duplicates", "{s}.drop_duplicates(BY, within=LONG, store={new})", KEPT | Mark.HIDDEN, weight=3),
    Step("moving_average", "{s}.moving_average('n', over=3, into='avg', store={new})", KEPT, weight=2),
    Step(
        "moving_average time",
        "{s}.moving_average('n', over=timedelta(seconds=1), into='avt', store={new})",
        KEPT | TIME,
    ),
    # -- windows
    Step("tumbling_window", "{s}.tumbling_window(SHORT, GRACE, {new}, ON_LATE).COLUMNS.FINAL", CLOSED, weight=7),
    Step("tumbling_window current", "{s}.tumbling_window(SHORT, GRACE, {new}).COLUMNS.CURRENT", SENT | TIME),
    Step(
        "tumbling_window early",
        "{s}.tumbling_window(LONG, GRACE, {new}, after_update=enough).count().FINAL",
        SENT | TIME | Mark.LOOSE,
    ),
    Step(
        "tumbling_window before",
        "{s}.tumbling_window(LONG, GRACE, {new}, before_update=enough).count().FINAL",
        SENT | TIME | Mark.LOOSE,
    ),
    Step("suppress", "{s}.tumbling_window(SHORT, GRACE, {new}).COLUMNS.current().suppress(every=SHORT)", SENT | TIME),
    Step("hopping_window", "{s}.hopping_window(LONG, SHORT, GRACE, {new}).COLUMNS.FINAL", CLOSED, weight=4),
    Step("sliding_window", "{s}.sliding_window(SHORT, GRACE, {new}).COLUMNS.final()", SENT | TIME, weight=3),
    Step("session_window", _SESSION + ".COLUMNS.FINAL", CLOSED, weight=4),
    Step("session_window current", _SESSION + ".count().current()", SENT | TIME, weight=2),
    Step("tumbling_count_window", "{s}.tumbling_count_window(3, {new}).COLUMNS.COUNTED", SENT, weight=3),
    Step("hopping_count_window", "{s}.hopping_count_window(4, 2, {new}).COLUMNS.COUNTED", SENT, weight=2),
    Step("sliding_count_window", "{s}.sliding_count_window(3, {new}).COLUMNS.COUNTED", SENT, weight=2),
    Step("shape", "{s}.apply(shaped)", weight=0),
    # -- two streams
    Step("concat", "{s}.concat({r})", weight=2),
    Step("join_asof", "{s}.join_asof({r}, HOW, MERGE, name={new})", JOINED, weight=7),
    Step(
        "join_asof tolerance",
        "{s}.join_asof({r}, HOW, MERGE, name={new}, tolerance_ms=LONG)",
        JOINED,
        weight=3,
    ),
    Step(
        "join_interval",
        "{s}.join_interval({r}, HOWS, MERGE, GRACE, {new}, SHORT, SHORT)",
        JOINED,
        weight=7,
    ),
    # -- groupings by other keys
    Step("group_by", "{s}.group_by(FIELD, {new})", Mark.GROUPS, weight=9),
    Step("group_by function", "{s}.group_by(third, {new})", Mark.GROUPS, weight=3),
    # -- tables
    Step("to_table", "{s}.to_table({new})", KEPT, "table", weight=4),
    Step("to_table history", "{s}.to_table({new}, history_retention=timedelta(days=7))", JOINED, "history"),
    Step("join_table", "{s}.join_table({t}, HOW, MERGE)", JOIN, weight=7),
    Step("join_table global", "{s}.join_table({w}, HOW, MERGE, on=ROW)", weight=4),
    Step("to_stream", "{t}.to_stream().filter(present)", Mark.ORDER, weight=3),
    Step("table join", "{t}.join({u}, HOW_TABLES, MERGE, {new})", KEPT, "table", weight=4),
    Step(
        "table join on",
        "{t}.join({u}, HOW, MERGE, {new}, on=FIELD)",
        Mark.ORDER | Mark.GROUPS | Mark.LAST,
        "table",
        weight=4,
    ),
    *(replace(each, weight=0) for each in OF_TABLES),
    # -- outputs
    Step("to_topic", "{s}.to_topic(app.topic({out}))", gives="", weight=0),
    Step("to_topic chosen", "{s}.to_topic(chosen(app, {out}), timestamp=same_time)", gives="", weight=0),
    Step("to_topic key", "{s}.to_topic(app.topic({out}), key=other_key, headers=headed)", gives="", weight=0),
)

#: Names of functions. Each adds steps with column expressions to a stream, and keeps the usual fields of its values.
COLUMNS: tuple[str, ...] = ("projected", "computed", "computed", "kept", "renamed", "with_headers")

#: The steps that make a stream or a table of an input topic.
SOURCES: tuple[Step, ...] = (
    Step("dataframe", "app.dataframe({topic})", weight=10),
    Step("table", "app.table({topic}, {new})", STATE, "table", weight=4),
    Step("table history", "app.table({topic}, {new}, history_retention=timedelta(days=7))", STATE, "history", weight=3),
    Step("table source", "app.table({topic}, {new}, changelog='source')", STATE, "table", weight=2),
    Step("global_table", "app.global_table({topic})", Mark.NONE, "global", weight=2),
)

#: The code that declares an input topic, in several forms.
TOPICS: tuple[str, ...] = (
    "app.topic({topic})",
    "app.topic({topic})",
    "app.topic({topic}, key_deserializer='str')",
    "app.topic({topic}, timestamp_extractor=of_value)",
)

_CIRCLE = (("group_by", "a"), ("to_table", "a"), ("join_table", "0 1"))
#: Openings: the first steps of some topologies, each with the streams or tables that it uses. ``a`` and ``b`` are input
#: streams; a number is the result of an earlier step of the opening. Random draws alone rarely produce these sequences.
OPENINGS: tuple[tuple[tuple[str, str], ...], ...] = (
    (*_CIRCLE, ("tumbling_window", "2")),
    (*_CIRCLE, ("group_by function", "2"), ("join_asof", "b 3")),
    (("tumbling_window", "a"), ("group_by", "b"), ("join_asof", "0 1")),
    (("hopping_window", "a"), ("group_by", "b"), ("join_asof", "0 1")),
    (("tumbling_window", "a"), ("group_by", "b"), ("to_table", "1"), ("join_table", "0 2")),
    (("apply_async", "a"), ("join_asof", "0 b")),
    (("join_lookup", "a"), ("store shared", "0 b")),
    (("apply_async", "a"), ("group_by", "0"), ("join_asof", "b 1")),
    (("apply in place", "a"), ("apply stateful", "a")),
    (("join_interval", "a b"),),
    (("group_by", "a"), ("group_by", "b"), ("join_asof", "0 1")),
    (("group_by", "a"), ("group_by", "b"), ("join_interval", "0 1")),
    (("group_by", "a"), ("tumbling_window", "0")),
    (("group_by", "a"), ("group_by function", "0"), ("hopping_window", "1")),
)

#: The texts to draw for each word of a template. A word with a case applies only in that case. ``circle``: a task waits
#: for its own output. ``unordered``: no order of messages is promised. ``twins``: no order of rows with equal times
#: is promised. ``groups``: the topology has a ``group_by``, so no message may be late. ``late``: rows may be late by an
#: interval and a grace.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "PLAIN": ("marked", "changed"),
    "STATEFUL": ("counted", "listed", "forgetful", "summed"),
    "BY": ("'d'", "length", "None"),
    "ON": ("'h'", "None"),
    "ROW": ("'h'", "'g'", "None"),
    "FIELD": ("'h'", "'g'"),
    "HOW": ("'inner'", "'left'"),
    "HOWS": ("'inner'", "'left'", "'right'", "'outer'"),
    "HOW_TABLES": ("'inner'", "'left'", "'outer'"),
    "MERGE": ("merged", "merged", "merged_in_place"),
    "MERGE circle": ("left_only",),
    "HOW circle": ("'left'",),
    "CONCURRENCY": ("1", "2", "16"),
    "CALLS": ("'key'", "'none'"),
    "SHORT": ("200", "500"),
    "LONG": ("900", "2_000"),
    "GRACE": ("0", "100", "1_000"),
    "GRACE groups": ("1_000", "1_500"),
    "GRACE late": ("3_000",),
    "ON_LATE": ("None", "'drop'"),
    "FINAL": ("final()", "final('partition')", "final('partition')"),
    "FINAL groups": ("final('partition')",),
    "CURRENT": ("current()", "current('partition')"),
    "COUNTED": ("current()", "final()"),
    "SUM": ("Sum('v')", "Sum('n')", "Sum(length)"),
    "SUM unordered": ("Sum('n')", "Sum(length)"),
    "COLUMNS": (
        "count()",
        "sum('v')",
        "mean('v')",
        "min('n')",
        "max('v')",
        "first('n')",
        "last('n')",
        "earliest('n')",
        "latest('n')",
        "collect('n')",
        "reduce(folded, begun, connected)",
        _AGG,
    ),
    "COLUMNS twins": ("count()", "sum('n')", "min('n')", "max('n')", "agg(c=Count(), s=SUM, x=Max('n'))"),
    "COLUMNS unordered": ("count()", "sum('n')", "min('n')", "max('n')", "earliest('n')", "latest('n')", _AGG),
}
