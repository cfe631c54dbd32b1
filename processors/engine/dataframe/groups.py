"""The method ``group_by``: gives messages another key, by sending them through an internal topic of the processor.

    source topic ──► steps ──► group_by ──► repartition topic ──► steps with state of the new key

All messages of a key must be in one partition, so messages with another key must be partitioned again. Each message is
written to the *repartition topic* under its new key, and read again from this topic. Writing to the topic and reading
from it are both exactly-once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from holdfast.infra.errors import BadConfiguration
from holdfast.processors.engine.changelog.names import check_name, repartition_topic
from holdfast.processors.engine.dataframe.chosen_topics import ChosenOutputs
from holdfast.processors.engine.formats.serialization import DeserializerChoice, SerializerChoice
from holdfast.processors.engine.formats.typed import model_of
from holdfast.processors.engine.schedules.declaration import Schedule, Schedules
from holdfast.processors.engine.sources.declaration import DeclaredSource, Sources
from holdfast.processors.engine.steps.checked_arguments import check_function
from holdfast.processors.engine.steps.group_key import GroupKey, text_of_key
from holdfast.processors.engine.steps.meaning import field_or_function, lines_of
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.signatures import is_async
from holdfast.processors.engine.steps.topic import Topic

Stream = TypeVar("Stream")


class GroupByInvalid(BadConfiguration):
    """The declaration of a ``group_by`` has an invalid argument."""


@dataclass(slots=True)
class Streams(Generic[Stream]):
    """The data that all streams of one application share: its name, streams by topic, schedules and sources."""

    processor: str
    by_topic: dict[str, Stream]
    schedules: Schedules = field(default_factory=lambda: Schedules(""))
    sources: Sources = field(default_factory=lambda: Sources(""))
    #: The topics that the application declared, by name. If several topics have the same name, the last one is kept.
    topics: dict[str, Topic] = field(default_factory=dict)
    #: The ``to_topic`` steps whose topic is chosen by a function for each message.
    choices: list[ChosenOutputs] = field(default_factory=list)
    #: For each topic between the steps of a join by a foreign key: the topic whose keys the joined rows have.
    row_topics: dict[str, Topic] = field(default_factory=dict)
    #: Runs a stream on one message, for ``sdf.test``. The function gets value, key, timestamp, headers and state.
    trial: Callable[..., list[Any]] = field(default=lambda *given: [])


class StreamGroups(Generic[Stream]):
    """The method that groups the messages of a stream by another key."""

    def group_by(  # tidy: allow-wide because the argument names are those of Quix Streams.
        self: Any,
        key: str | Callable[[Any], Any],
        name: str | None = None,
        value_deserializer: DeserializerChoice = "json",
        key_deserializer: DeserializerChoice = "bytes",
        value_serializer: SerializerChoice = "json",
        key_serializer: SerializerChoice = text_of_key,
        *,
        partitions: int | None = None,
    ) -> Stream:
        """Returns a stream of the same messages under another key. Later steps with state use this key.

        Values, times and headers stay unchanged. Each message is written to the topic
        ``<processor>-<name>-repartition`` and read again. The processor owns this topic and deletes processed records
        from it.

        Args:
            key: A field of the value, or a function of the value. A message whose key is None fails.
            name: The name of the grouping; None means the field's name. A function needs a name.
            value_deserializer: The deserializer of values in the repartition topic.
            key_deserializer: The deserializer of keys in the repartition topic, for functions that read the key.
            value_serializer: The serializer of values in the repartition topic.
            key_serializer: The serializer of keys in the repartition topic. The default writes texts, bytes and whole
                numbers as text.
            partitions: The number of partitions of the repartition topic. None means the largest partition count of
                topics that share a store with it, for example in a join. If no topic shares a store with it, None means
                the partition count of the source topics.

        Raises:
            GroupByInvalid: The name is missing or already in use, or the stream has the changes of a table.
            StepInvalid: The function takes other arguments.
        """
        grouped = GroupKey(key, _name_of(key, name))
        if self._groups is None:
            raise without_application("`group_by`")
        if self._changes_of:
            raise _of_table(self._changes_of, self.topic.label, key)
        if isinstance(key, str) and key == self.topic.grouped_field and self._tails == (self._source,):
            unchanged: Stream = self  # No repartition topic is needed, because the messages have this key already.
            return unchanged
        topic = Topic(
            repartition_topic(self._groups.processor, grouped.name),
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            # If the values are instances of a class, the stream after the topic has instances, too, unless the user
            # chose another format.
            value=self._model if (value_serializer, value_deserializer) == ("json", "json") else None,
        )
        if topic.formats.model is not None:
            topic.serialize_value = model_of(topic.formats.model).write_unchanged
        topic.label = f"{self._stem}-by-{grouped.name}"
        topic.group_by, topic.partitions = grouped.name, _count(partitions)
        topic.grouped_field = key if isinstance(key, str) else ""
        if topic.name in self._groups.by_topic:
            raise GroupByInvalid(
                f"Topic {topic.name}, of a `group_by` with the name {grouped.name!r}, is used already in "
                f"{self._groups.processor}.",
                action="Keep the first `group_by` in a variable and use it again, or give this one another `name`.",
                name=grouped.name,
            )
        means = lines_of("group_by", grouped.name, key=field_or_function(key), key_serializer=key_serializer)
        made: Stream = self._through(topic, grouped, means)
        return made

    def _through(self: Any, topic: Topic, grouped: GroupKey, meaning: tuple[str, ...] = ()) -> Stream:
        """Sends this stream's messages through a repartition topic. Returns the stream that reads the topic."""
        for tail in self._tails:
            tail.children.append(Node("to_topic", grouped, topic=topic, meaning=meaning))
        made: Stream = self._first_of(topic)
        self._groups.by_topic[topic.name] = made
        return made

    def _between(self: Any, key: Callable[[Any], bytes], name: str, label: str | None = None) -> Stream:
        """Sends JSON messages with a new key through a repartition topic. Returns the stream that reads this topic.

        A join by a key inside the row, and ``group_by`` of a table, call this method. Later steps may use stores
        without a name from the user. The names of these stores begin with ``label``, or with ``name`` if ``label`` is
        None.

        Raises:
            GroupByInvalid: The stream belongs to no application, or the name is already in use.
        """
        if self._groups is None:
            what = "A join by a key inside the row" if label is None else "`group_by` of a table"
            raise without_application(what)
        topic = Topic(repartition_topic(self._groups.processor, name))
        topic.label, topic.group_by = label or name, name
        topic.between = "join" if label is None else "table groups"
        if label is None:
            self._groups.row_topics[topic.name] = self._groups.row_topics.get(self.topic.name, self.topic)
        if topic.name in self._groups.by_topic:
            what = "join" if label is None else "`group_by` of a table"
            raise GroupByInvalid(
                f"Topic {topic.name} of a {what} is used already in {self._groups.processor}.",
                action=f"Give the {'join' if label is None else '`aggregate`'} another `name`, or keep the first one "
                "in a variable and use it again.",
                name=name,
            )
        made: Stream = self._through(topic, GroupKey(key, name))
        return made

    def _read_topics(self: Any) -> list[Topic]:
        """Returns the topics from which the messages of this stream come, with the keys that the messages have.

        After a join by a foreign key, this is the topic of the left table, and not the topic between the steps.
        """
        if self._groups is None:
            return [self.topic]
        tails = {id(tail) for tail in self._tails}
        found = [each.topic for each in self._groups.by_topic.values() if tails & {*map(id, each.source.walk())}]
        return [self._groups.row_topics.get(topic.name, topic) for topic in found or [self.topic]]


def schedules_by_store(stream: Any) -> dict[str, tuple[str, tuple[Schedule, ...]]]:
    """Maps the name of each store for schedules to its input topic and its schedules, for the stream's application."""
    groups: Streams[Any] | None = stream._groups
    if groups is None or not groups.schedules.by_name:
        return {}
    return groups.schedules.by_store({name: each.topic.label for name, each in groups.by_topic.items()})


def sources_by_store(stream: Any) -> dict[str, DeclaredSource]:
    """Maps the name of each store that belongs to a source to this source, for the stream's application."""
    groups: Streams[Any] | None = stream._groups
    return {} if groups is None else groups.sources.by_store()


def processor_of(stream: Any) -> str:
    """Returns the name of the processor (consumer group) that a stream belongs to; empty without an application."""
    groups: Streams[Any] | None = stream._groups
    return "" if groups is None else groups.processor


def _of_table(table: str, topic: str, key: Any) -> GroupByInvalid:
    by = repr(key) if isinstance(key, str) else "function, name='...'"
    return GroupByInvalid(
        f"`group_by` got the changes of table {table!r}. A row that moves to another key would count under both, and a "
        "deleted row has no key.",
        action=f"Group the table itself, which takes a former row out of its group: `table.group_by({by})"
        f".aggregate(n=Count())`, and `.to_stream()` behind it. To group the messages, declare them as a stream: "
        f"`messages = app.dataframe(app.topic({topic!r}))`, "
        f"`messages.filter(lambda value: value is not None).group_by({by})`; its table is `messages.to_table()`.",
        table=table,
    )


def without_application(what: str) -> GroupByInvalid:
    """The error for a step of a stream without an application, if the step needs the application."""
    return GroupByInvalid(
        f"{what} needs a stream of an application, and this one was made without.",
        action="Make it with `app.dataframe(topic)`.",
    )


def _name_of(key: Any, name: Any) -> str:
    if not (isinstance(key, str) or callable(key)):
        raise GroupByInvalid(
            f"`group_by` got {key!r}, expected a field's name or a function of the value.",
            action="Write, for example, `sdf.group_by('carrier')`.",
            seen=repr(key)[:80],
        )
    if callable(key):
        check_function(key, "`key` of `group_by`", ("value",), awaited=True)
        if is_async(key):
            raise GroupByInvalid(
                f"The key function {key.__name__} of a `group_by` is async, expected a function that returns the key.",
                action="Write `def`; await other systems in `apply_async` before `group_by`.",
            )
    if name is None and not isinstance(key, str):
        raise GroupByInvalid(
            "`group_by` of a function has no name, which names its topic.",
            action="Add one: `sdf.group_by(function, name='by-carrier')`.",
        )
    return check_name(key if name is None else name, "name of a `group_by`")


def _count(partitions: Any) -> int | None:
    if partitions is None or (type(partitions) is int and partitions > 0):
        return partitions
    raise GroupByInvalid(
        f"`partitions` of a `group_by` is {partitions!r}, expected a whole number from 1.",
        action="Correct it, or leave it out.",
        seen=repr(partitions)[:80],
    )
