"""Joins for the simulation: as-of, by interval, with a table that has a history, and of two tables.

Messages with an even number are the left side, the others the right side. Behind ``group_by``, each side has its own
repartition topic; in ``joined``, each side has its own input topic. A right message is identified by one number, its
tag. One tag is 0, so that a falsy value is tested as well.

``JoinsCheck`` computes the correct rows from the input alone. Messages of a partition are out of order by less than
``disorder_ms``. So a left message may match any right message within that time before it.

The join of two tables combines the rows that were processed last. Behind ``group_by``, messages of several partitions
have no order. ``JoinsCheck`` therefore compares each row with the row before it: exactly one side changes, to a newer
message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.processors.engine.changelog.names import repartition_topic
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP

ASOF, NEAR, TABLE, PAIR = "as of", "near", "table", "pair"
SIDES = ("left", "right")
TOPICS = tuple(repartition_topic(GROUP, side) for side in SIDES)
#: The interval of the interval join, in milliseconds before and after the left message.
BACKWARD_MS, FORWARD_MS = 60, 30
#: The largest number of input partitions.
PARTITIONS_MAX = 64

#: Identifies a message: its partition, and its number within the partition.
Name = tuple[int, int]


class Sent(NamedTuple):
    """A message that reaches the joins."""

    partition: int
    number: int
    at: int
    group: str

    @property
    def name(self) -> Name:
        return self.partition, self.number

    @property
    def left(self) -> bool:
        return self.number % 2 == 0

    @property
    def tag(self) -> int:
        """The number that identifies a right message. It is 0 for the first right message of partition 0."""
        return _tag({"p": self.partition, "n": self.number})


def _tag(value: dict[str, Any]) -> int:
    return value["p"] + PARTITIONS_MAX * (value["n"] // 2)


def is_left(value: dict[str, Any]) -> bool:
    return value["n"] % 2 == 0


def is_right(value: dict[str, Any]) -> bool:
    return value["n"] % 2 == 1


#: The filters that divide a stream of messages into the left and the right side of the joins.
WHICH = (is_left, is_right)


def _row(left: dict[str, Any], right: int | None) -> dict[str, Any]:
    return {"p": left["p"], "n": left["n"], "right": right}


def _pair(left: dict[str, Any] | None, right: int | None) -> dict[str, Any]:
    return {"left": None if left is None else [left["p"], left["n"]], "right": right}


def add_joins(left: Any, messages: Any, output: Any, grace_ms: int) -> None:
    """Adds the four joins of two streams of ``GroupedMessage``, and sends their rows to the output."""
    right = messages.apply(_tag)
    lefts, rights = left.to_table("lefts"), right.to_table("rights")
    found = {
        ASOF: left.join_asof(right, "left", _row, name=ASOF.replace(" ", "-")),
        NEAR: left.join_interval(right, "left", _row, grace_ms, NEAR, BACKWARD_MS, FORWARD_MS),
        TABLE: left.join_table(right.to_table(TABLE, history_retention=7 * 86_400_000), "left", _row),
        PAIR: lefts.join(rights, "outer", _pair, PAIR).to_stream(),
    }
    for kind, joined in found.items():
        joined.apply(_marked(kind)).to_topic(output)


def _marked(kind: str) -> Any:
    def marked(value: dict[str, Any]) -> dict[str, Any]:
        return {"of": kind, **value}

    return marked


def _name_of(row: dict[str, Any]) -> Name | None:
    """The left message in a row of the join of two tables. None for a row without a left side."""
    return None if row["left"] is None else (row["left"][0], row["left"][1])


def _parted(rows: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Divides rows into those of joins of streams and those of the join of two tables."""
    every = list(rows)
    return [row for row in every if row["of"] != PAIR], [row for row in every if row["of"] == PAIR]


@dataclass(slots=True)
class JoinsCheck:
    """Compares the joins' rows with the expected matches of the messages."""

    messages: Sequence[Sent]
    disorder_ms: int
    grace_ms: int
    #: Kind of join -> the expected rows, as far as the input determines them. A row of the interval join is a pair: the
    #: name of the left message, and the tag (number) of the right message.
    expected: dict[str, Counter[tuple[Name, int | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lefts, rights = [each for each in self.messages if each.left], [each for each in self.messages if not each.left]
        now = max((each.at for each in self.messages), default=0)
        pairs: Counter[tuple[Name, int | None]] = Counter()
        for left in lefts:
            near = [
                right.tag
                for right in rights
                if right.group == left.group and -BACKWARD_MS <= right.at - left.at <= FORWARD_MS
            ]
            pairs.update((left.name, tag) for tag in near)
            if not near and left.at + FORWARD_MS + self.grace_ms + 1 <= now:
                pairs[left.name, None] += 1
        self.expected[NEAR] = pairs

    def complete(self, rows: Iterable[dict[str, Any]]) -> bool:
        """Whether no expected row is missing."""
        rows, pairs = _parted(rows)
        if not {each.name for each in self.messages if each.left} <= {_name_of(row) for row in pairs}:
            return False
        if not {each.tag for each in self.messages if not each.left} <= {row["right"] for row in pairs}:
            return False
        found = {(row["of"], (row["p"], row["n"]), row["right"]) for row in rows}
        sent = {(kind, name) for kind, name, _ in found}
        single = {(kind, each.name) for kind in (ASOF, TABLE) for each in self.messages if each.left}
        return single <= sent and {(NEAR, *pair) for pair in self.expected[NEAR]} <= found

    def check(self, rows: Sequence[dict[str, Any]], *, once: bool) -> None:
        """Checks that all rows are present and correct and, with ``once``, that no row was sent twice.

        Raises:
            InvariantBroken: A row is missing, wrong, or sent twice.
        """
        others, pairs = _parted(rows)
        self._check_pairs(pairs, once=once)
        counts = Counter((row["of"], (row["p"], row["n"]), row["right"]) for row in others)
        if once and (again := [row for row, count in counts.items() if count > 1]):
            raise InvariantBroken("outputs", f"rows of joins sent more than once: {again[:3]}, {len(again)} in all")
        by_name = {each.name: each for each in self.messages}
        for kind, name, tag in counts:
            if kind == NEAR:
                if (name, tag) not in self.expected[NEAR]:
                    raise InvariantBroken("outputs", f"{name} is joined by interval with {tag}, expected otherwise")
            else:
                self._check_newest(kind, by_name[name], tag)
        for kind in (ASOF, TABLE):
            found = Counter(name for of, name, _ in counts if of == kind)
            if once and (twice := [name for name, count in found.items() if count > 1]):
                raise InvariantBroken("outputs", f"{kind}: more than one row for {twice[:3]}")
        if not self.complete(rows):
            raise InvariantBroken("outputs", "rows of joins are missing")

    def _check_pairs(self, pairs: Sequence[dict[str, Any]], *, once: bool) -> None:
        by_name = {each.name: each for each in self.messages if each.left}
        by_tag = {each.tag: each for each in self.messages if not each.left}
        before: dict[str, tuple[Sent | None, Sent | None]] = {}
        newest: dict[tuple[str, bool, int], int] = {}
        for row in pairs:
            name, tag = _name_of(row), row["right"]
            now = (None if name is None else by_name.get(name), None if tag is None else by_tag.get(tag))
            groups = {each.group for each in now if each is not None}
            if len(groups) != 1 or (name is None) != (now[0] is None) or (tag is None) != (now[1] is None):
                raise InvariantBroken("outputs", f"the tables have no such pair: {row}")
            [group] = groups
            new = [each for each, former in zip(now, before.get(group, (None, None)), strict=True) if each != former]
            before[group] = now
            if not once:
                continue
            if len(new) != 1 or new[0] is None:
                raise InvariantBroken("outputs", f"tables: {row} does not follow from one change of a row")
            place = (group, new[0].left, new[0].partition)
            if newest.get(place, -1) >= new[0].number:
                raise InvariantBroken("outputs", f"tables: {row} came again, or behind a newer one")
            newest[place] = new[0].number

    def _check_newest(self, kind: str, left: Sent, tag: int | None) -> None:
        older = [each for each in self.messages if not each.left and each.group == left.group and each.at <= left.at]
        sure = max((each.at for each in older if each.at <= left.at - self.disorder_ms), default=None)
        found = next((each for each in older if each.tag == tag), None) if tag is not None else None
        if tag is not None and found is None:
            raise InvariantBroken("outputs", f"{kind}: {left} has the row {tag}, which is younger or another group's")
        if sure is not None and (found is None or found.at < sure):
            raise InvariantBroken("outputs", f"{kind}: {left} has {found}, and there is one of {sure}")
