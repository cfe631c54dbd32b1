"""The methods of ``Application`` that declare topics, tables and stores."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from holdfast.processors.application.arguments import ApplicationInvalid, one_of
from holdfast.processors.application.source_tables import source_log
from holdfast.processors.engine.formats.serialization import DeserializerChoice, SerializerChoice
from holdfast.processors.engine.formats.typed import row_model
from holdfast.processors.engine.joins.global_tables import GlobalTable
from holdfast.processors.engine.joins.tables import Table
from holdfast.processors.engine.steps.checked_arguments import check_topic
from holdfast.processors.engine.steps.store_options import StoreName, StoreOptions, Upgrades, declare
from holdfast.processors.engine.steps.topic import TimestampExtractor, Topic, TopicConfig
from holdfast.processors.engine.topology import SourceLog

if TYPE_CHECKING:
    from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
    from holdfast.processors.engine.dataframe.groups import Streams


class ApplicationTables:
    """The base class of ``Application`` with the methods that declare topics, tables and stores."""

    consumer_group: str
    _stores: dict[str, StoreOptions]
    _globals: dict[str, GlobalTable]
    _table_topics: set[str]
    _source_logs: list[SourceLog]
    _streams: Streams[StreamingDataFrame]
    _renamed_stores: Mapping[str, str]

    def topic(  # tidy: allow-wide because these are the argument names of Quix Streams.
        self,
        name: str,
        *,
        value_deserializer: DeserializerChoice = "json",
        key_deserializer: DeserializerChoice = "bytes",
        value_serializer: SerializerChoice = "json",
        key_serializer: SerializerChoice = "bytes",
        config: TopicConfig | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        max_ahead: int | timedelta = timedelta(hours=1),
        value: Any = None,
    ) -> Topic:
        """Declares a topic.

        A (de)serializer is a name (``json``, ``bytes``, ``str``, ``msgpack``, ``double``, …), an object such as
        ``AvroDeserializer(...)``, or a function.

        ``value`` is the class of the values: a pydantic model, a dataclass, a ``msgspec.Struct``, or a class of
        Protobuf. Functions get instances of the class. A message or a result that does not fit the class fails.

        ``timestamp_extractor`` returns the event time from (value, headers, timestamp, timestamp_type). In an
        application with windows, a message more than ``max_ahead`` (milliseconds or a timedelta) ahead of the worker's
        clock fails.
        """
        declared = Topic(
            name,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            config=config,
            timestamp_extractor=timestamp_extractor,
            max_ahead=max_ahead,
            value=value,
        )
        declared.processor = self.consumer_group
        self._streams.topics[name] = declared
        return declared

    def dataframe(self, topic: Topic) -> StreamingDataFrame:
        """Returns the stream of a topic, to which steps can be added."""
        raise NotImplementedError  # `Application` implements this member

    def table(
        self,
        topic: Topic,
        name: str | None = None,
        *,
        model: Any = None,
        history_retention: int | timedelta | None = None,
        changelog: Literal["own", "source"] = "own",
    ) -> Table[StreamingDataFrame]:
        """Declares a table of a compacted topic: a store with the newest value of each key.

        Args:
            topic: The topic. A message with the value None deletes the row of its key.
            name: The name of the store; None means ``<topic>-table``.
            model: The model of the rows, which gives typed columns in the warehouse.
            history_retention: The time for which a replaced row is kept, in milliseconds or as a timedelta. With it,
                ``join_table`` finds the row that was valid at the message's time. None keeps only the last received
                row.
            changelog: ``own`` writes a changelog of the store. ``source`` restores the store from the topic itself, so
                that no second topic is needed.

        Raises:
            ApplicationInvalid: The topic already has a stream, so call the stream's ``to_table``. Or ``changelog`` is
                ``source``, and the rows can't be restored from the topic.
            StepInvalid: The argument is not a topic, or the store's name is invalid.
            DurationInvalid: ``history_retention`` is out of range.
        """
        check_topic(topic, "app.table")
        model = row_model(topic.formats.model) if model is None else model
        one_of("changelog", changelog, ("own", "source"))
        frame = self.dataframe(topic)
        self._table_topics.add(topic.name)
        table = frame.to_table(name, model=model, history_retention=history_retention)
        if changelog == "source":
            self._source_logs.append(source_log(table.name, topic, has_history=table.has_history))
        return table

    def _declared_twice(self, topic: str) -> ApplicationInvalid:
        """Returns the error for a topic that already has a stream or a table."""
        if is_table := topic in self._table_topics:
            action = (
                "Keep the first `app.table(topic)` in a variable and use it again; `table.to_stream()` is its stream."
            )
        else:
            action = (
                "Keep the first `app.dataframe(topic)` in a variable and branch from it; `sdf.to_table()` is its table."
            )
        return ApplicationInvalid(
            f"Topic {topic} already has a {'table' if is_table else 'stream'} in application {self.consumer_group}; "
            "expected one stream or table.",
            action=action,
            topic=topic,
        )

    def global_table(self, topic: Topic) -> GlobalTable:
        """Declares a global table: each worker reads all rows of a topic into memory, for joins and for functions.

        Raises:
            ApplicationInvalid: The topic already has a global table.
            StepInvalid: The argument is not a topic.
        """
        check_topic(topic, "app.global_table")
        if topic.name in self._globals:
            raise ApplicationInvalid(
                f"Topic {topic.name} already has a global table in application {self.consumer_group}; expected one.",
                action="Keep the first `app.global_table(topic)` in a variable and use it in all joins.",
                topic=topic.name,
            )
        made = self._globals[topic.name] = GlobalTable(topic, self._stores)
        return made

    def store(
        self,
        name: str,
        *,
        model: Any = None,
        upgrades: Upgrades | None = None,
        ttl: int | timedelta | Literal["by value"] | None = None,
        codec: str = "json",
    ) -> str:
        """Declares how the values of a store are stored.

        Returns the store's name, for the argument ``store=`` of steps.

        Args:
            name: The name of the store.
            model: The type of values that functions get and set: a pydantic model (or another type) for every value, or
                a mapping of state keys to models, with ``"*"`` for all other keys. The model also gives the column
                types in the warehouse.
            upgrades: For each version, a function that converts a stored JSON object to the next version. The last
                function returns the newest version. If ``model`` is a mapping, a mapping of such functions by state
                key.
            ttl: Time for which a value is readable after its message's event time, in milliseconds or a timedelta.
                ``"by value"``: only values set with ``ttl=`` expire. None: values never expire.
            codec: How values become bytes: ``"json"``, ``"msgpack"``, ``"typed"`` (keeps Python's types, such as sets,
                tuples, bytes, ``Decimal`` and times), or ``"bytes"``. Values that another codec wrote stay readable.

        Raises:
            StoreInvalid: An argument is invalid, or the store is already declared.
        """
        kept = self._renamed_stores.get(name, name)
        declare(self._stores, StoreOptions(kept, model, upgrades, ttl, codec))
        return StoreName.of(name, self._stores)
