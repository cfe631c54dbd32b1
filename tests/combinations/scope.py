"""The part of a topology that is declared so far, and its properties; the draw of the next steps depends on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from tests.combinations.grammar import Kind, Mark
from tests.combinations.topology import Line


@dataclass(frozen=True, slots=True)
class Made:
    """A stream or table that a line makes, and its properties.

    Attributes:
        topics: The input and repartition topics whose messages it has.
        ordered: Whether the messages of a key have one order in every schedule.
        first: Whether ``apply_async`` may come next.
        window: Whether a window is before it.
        odd: Whether its values have another form than those of messages.
        last: Whether only the last record of a key is the same in every schedule.
        grouped: Whether a ``group_by`` is before it.
        loose: Whether its messages come with a commit, for instance results of windows that close by partition. The
            content of state at such a message depends on when commits happen.
        late: Whether rows may come later than the grace of most windows: outer rows of an interval join.
        changes: Whether it may contain a table's changes, which `group_by` refuses.
        twins: Whether it may have several rows with the same key and time, for instance of an interval join.
    """

    name: str
    kind: Kind
    topics: frozenset[str]
    ordered: bool = True
    first: bool = True
    window: bool = False
    odd: bool = False
    last: bool = False
    grouped: bool = False
    loose: bool = False
    late: bool = False
    changes: bool = False
    twins: bool = False


@dataclass(slots=True)
class Tasks:
    """The topics that one kind of task reads together, and whether its results depend on time or reading order."""

    topics: set[str]
    #: Whether results depend on the stream time at which messages arrive.
    timed: bool = False
    #: Whether results depend on the order in which several inputs are read.
    joins: bool = False


@dataclass(slots=True)
class Scope:
    """All streams, tables and tasks that are declared so far."""

    random: Random
    partitions: int
    #: Whether a ``group_by`` is allowed; then no message may be late anywhere.
    groups: bool
    lines: list[Line] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    tasks: list[Tasks] = field(default_factory=list)
    #: Repartition topic -> the input topics of the tasks that write to this repartition topic.
    writers: dict[str, set[str]] = field(default_factory=dict)
    #: Input topic -> the right inputs of its joins, in which they look up messages or rows.
    rights: dict[str, set[str]] = field(default_factory=dict)
    #: The repartition topics of table joins with ``on=``.
    of_joins: set[str] = field(default_factory=set)
    #: Name of a grouped stream -> the field by which it is grouped.
    fields: dict[str, str] = field(default_factory=dict)
    #: Names of streams and tables that no later step may use, for instance because a call of another system follows.
    closed: set[str] = field(default_factory=set)
    used: Counter[str] = field(default_factory=Counter)
    marks: Mark = Mark.NONE
    #: Whether results may depend on the schedule. If so, only runs of one schedule are compared, in which the engine
    #: processes messages with different loops (one by one, generated, or by columns).
    wild: bool = False
    number: int = 0
    circle: bool = False

    def new(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def task_of(self, topic: str) -> Tasks:
        return next(each for each in self.tasks if topic in each.topics)

    def merged(self, topics: set[str]) -> Tasks:
        """The task that would read all of these topics together."""
        found = [each for each in self.tasks if each.topics & topics]
        return Tasks(
            set().union(*(each.topics for each in found)),
            any(each.timed for each in found),
            any(each.joins for each in found),
        )

    def merge(self, topics: set[str]) -> Tasks:
        made = self.merged(topics)
        self.tasks = [each for each in self.tasks if not each.topics & topics] + [made]
        return made

    def is_circle(self, tasks: Tasks) -> bool:
        """Whether these tasks would wait for their own output: one of their inputs comes from themselves."""
        seen, look_at = set[str](), [topic for topic in tasks.topics if topic in self.writers]
        while look_at:
            for writer in self.writers[look_at.pop()]:
                if writer in tasks.topics:
                    return True
                group = self.task_of(writer).topics
                look_at += [topic for topic in group - seen if topic in self.writers]
                seen |= group
        return False

    def origins(self, topics: Collection[str]) -> set[str]:
        """The input topics whose messages reach these topics, directly or through groupings."""
        found, look_at = set[str](), list(topics)
        while look_at:
            topic = look_at.pop()
            look_at += self.writers.get(topic, set()) - found
            found.add(topic)
        return found - set(self.writers)

    def before(self, tasks: Tasks) -> list[Tasks]:
        """Return these tasks, and all tasks whose messages reach them through groupings."""
        found, look_at = [tasks], [topic for topic in tasks.topics if topic in self.writers]
        while look_at:
            for group in map(self.task_of, self.writers[look_at.pop()]):
                if all(group is not each for each in found):
                    found.append(group)
                    look_at += [topic for topic in group.topics if topic in self.writers]
        return found

    def leads_to(self, topics: Collection[str], targets: Collection[str]) -> bool:
        """Whether joins look up the ``targets`` for messages of ``topics``, directly or through other inputs."""
        seen, look_at = set[str](), list(topics)
        while look_at:
            new = self.rights.get(look_at.pop(), set[str]()) - seen
            seen |= new
            look_at += new
        return not seen.isdisjoint(targets)

    def is_grouped(self, tasks: Tasks) -> bool:
        return any(topic in self.writers for topic in tasks.topics)
