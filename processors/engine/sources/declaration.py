"""The sources that an application declares, by name, with their topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from holdfast.infra.errors import BadConfiguration
from holdfast.processors.engine.changelog.names import IllegalName, check_name
from holdfast.processors.engine.sources.source import Source, StatefulSource
from holdfast.processors.engine.steps.checked_arguments import check_own_topic, check_topic
from holdfast.processors.engine.steps.topic import Topic
from holdfast.processors.engine.store_uses import SourceUse

#: The prefix of the names of sources' stores, and the prefix of the names of sources' default topics.
STORE_PREFIX, TOPIC_PREFIX = "source-", "source__"


class SourceInvalid(BadConfiguration):
    """The declaration of a source is invalid."""


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """A source, and the topic to which it produces."""

    source: Source
    topic: Topic

    @property
    def name(self) -> str:
        """The name of the source. The application stores the source's state and progress under this name."""
        return self.source.name

    @property
    def keeps_state(self) -> bool:
        """Whether the source has state (``StatefulSource``), from which it resumes after a restart."""
        return isinstance(self.source, StatefulSource)

    @property
    def use(self) -> SourceUse:
        """Describes the content of the source's store."""
        return SourceUse(self.name, keeps_state=self.keeps_state)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of the user's class whose source text is a part of the processor's code version."""
        return tuple(self.source.version_functions)


@dataclass(slots=True)
class Sources:
    """The sources of one application, by name. ``renamed`` maps the new name of a store to its former name."""

    processor: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    by_name: dict[str, DeclaredSource] = field(default_factory=dict)
    #: The topics of those sources whose messages no declared stream reads.
    unread: set[str] = field(default_factory=set)

    def add(self, source: Any, topic: Topic | None) -> Topic:
        """Adds a source and returns its topic. If ``topic`` is None, the source's default topic is used.

        Raises:
            SourceInvalid: The object can't be used as a source, or the application already has a source of this name.
            StepInvalid: ``topic`` is not a topic, or belongs to another application.
        """
        _check_source(source)
        if source.name in self.by_name:
            raise SourceInvalid(
                f"Application {self.processor} has two sources of the name {source.name!r}: their state is kept by "
                "name.",
                action="Give one of them another name: `super().__init__(name='other')`.",
                name=source.name,
            )
        if topic is None:
            topic = source.default_topic()
            check_topic(topic, "default_topic")
            if not topic.name.startswith(TOPIC_PREFIX):
                topic.name = topic.label = check_name(f"{TOPIC_PREFIX}{topic.name}", "topic name of a source")
            topic.processor = self.processor
        check_topic(topic, "app.add_source")
        check_own_topic(topic, self.processor)
        if topic.repartitions:
            raise SourceInvalid(
                f"Source {source.name!r} got {topic.name}, a topic of `group_by`.",
                action="Give it a topic of `app.topic`, or none.",
                name=source.name,
            )
        self.by_name[source.name] = DeclaredSource(source, topic)
        return topic

    def by_store(self) -> dict[str, DeclaredSource]:
        """Maps the name of each store of a source to the source."""
        stores = {f"{STORE_PREFIX}{name}": each for name, each in self.by_name.items()}
        return {self.renamed.get(store, store): each for store, each in stores.items()}


def _check_source(source: Any) -> None:
    if not isinstance(source, Source):
        raise SourceInvalid(
            f"`source` is {repr(source)[:80]} of type {type(source).__name__}; expected an object of a subclass of "
            "`holdfast.sources.Source`.",
            action="Write `app.dataframe(source=MySource(name='orders'))`.",
            seen=repr(source)[:80],
        )
    kind = type(source).__name__
    if not hasattr(source, "name"):
        raise SourceInvalid(
            f"Source {kind} has no name: its `__init__` does not call that of `Source`.",
            action="Write `super().__init__(name=name)` at the beginning of its `__init__`.",
            seen=kind,
        )
    if type(source).run is Source.run:
        raise SourceInvalid(
            f"Source {source.name!r} has no `run`: class {kind} does not implement it.",
            action=f"Implement `def run(self)` in {kind}, which calls `self.produce(...)`.",
            name=source.name,
        )
    if any(test(type(source).run) for test in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)):
        raise SourceInvalid(
            f"`run` of source {source.name!r} is async or has `yield`, so its call does nothing. Expected a function "
            "that runs until the source ends.",
            action="Write a plain `def run(self)` that calls `self.produce(...)`. It may call `asyncio.run(...)`.",
            name=source.name,
        )
    try:
        check_name(source.name, "name of a source")
    except IllegalName as failure:
        raise SourceInvalid(
            f"A source has the name {source.name!r}; expected letters, digits, dots, underscores and dashes.",
            action="Write, for example, `super().__init__(name='orders')`.",
            seen=repr(source.name)[:80],
        ) from failure
    timeout = source.shutdown_timeout
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout < float("inf"):
        raise SourceInvalid(
            f"`shutdown_timeout` of source {source.name!r} is {timeout!r}; expected seconds, from 0.",
            action="Write, for example, `shutdown_timeout=10`.",
            name=source.name,
        )
