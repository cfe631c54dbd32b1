"""The methods of ``Application`` that declare streams and sources."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.processors.application.arguments import ApplicationInvalid
from holdfast.processors.application.tables import ApplicationTables
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.sources.source import Source
from holdfast.processors.engine.steps.checked_arguments import check_topic
from holdfast.processors.engine.steps.store_options import StoreOptions
from holdfast.processors.engine.steps.topic import Topic


class ApplicationSources(ApplicationTables):
    """The base class of ``Application`` with the methods that declare streams and sources."""

    _frames: dict[str, StreamingDataFrame]
    _renamed_stores: Mapping[str, str]
    _stores: dict[str, StoreOptions]

    def dataframe(self, topic: Topic | None = None, source: Source | None = None) -> StreamingDataFrame:
        """Returns the stream of a topic, to which steps can be added.

        Args:
            topic: The topic; None means the default topic of ``source``.
            source: A source that produces to the topic. It runs in the task of the topic's partition 0.

        Raises:
            StepInvalid: The argument is not a topic.
            ApplicationInvalid: The topic already has a stream; or neither a topic nor a source is given.
            SourceInvalid: The source can't be used, or the application already has a source of this name.
        """
        if topic is None and source is None:
            raise ApplicationInvalid(
                "`app.dataframe` got neither a topic nor a source; expected one of them.",
                action="Write `app.dataframe(app.topic('orders'))`, or `app.dataframe(source=MySource('orders'))`.",
            )
        if source is not None:
            topic = self.add_source(source, topic)
        assert topic is not None
        check_topic(topic, "app.dataframe")
        unread = self._streams.sources.unread
        if topic.name in unread:
            unread.discard(topic.name)
            return self._frames[topic.name]
        if topic.name in self._frames:
            raise self._declared_twice(topic.name)
        frame = self._frames[topic.name] = StreamingDataFrame(
            topic, renamed=self._renamed_stores, declared=self._stores, groups=self._streams
        )
        return frame

    def add_source(self, source: Source, topic: Topic | None = None) -> Topic:
        """Adds a source to the application and returns its topic.

        One worker of the processor runs the source: the owner of the task of the topic's partition 0. The processor
        also reads the topic if no stream of it is declared with ``app.dataframe``.

        Args:
            source: An object of a subclass of ``holdfast.sources.Source``.
            topic: The topic to which the source produces; None means ``source.default_topic()``, whose name gets the
                prefix ``source__``.

        Raises:
            SourceInvalid: The source can't be used, or the application already has a source of this name.
            StepInvalid: The argument ``topic`` is not a topic, or belongs to another application.
        """
        made = self._streams.sources.add(source, topic)
        self._streams.topics.setdefault(made.name, made)
        if made.name not in self._frames:
            self.dataframe(made)
            self._streams.sources.unread.add(made.name)
        return made
