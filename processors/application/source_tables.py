"""Tables with ``changelog="source"``: checks whether a declaration allows them, and describes their topics.

The store of such a table is restored from the table's topic. The store may therefore hold only data that can be
computed from the topic's records. This module refuses every declaration that breaks this rule, and gives the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.processors.application.arguments import ApplicationInvalid
from holdfast.processors.engine.formats.serialization import name_of_deserializer
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.topic import Topic
from holdfast.processors.engine.topology import SourceLog, StoreSpec, Subtopology

#: Names of the deserializers that are allowed for the values of a table with ``changelog="source"``.
VALUES = ("json", "str")
_OWN = "Leave `changelog` out: the table then has a changelog of its own."


def source_log(store: str, topic: Topic, *, has_history: bool) -> SourceLog:
    """Describes a table's topic as the changelog of its store.

    Raises:
        ApplicationInvalid: The rows can't be computed from the topic's records alone.
    """
    if has_history:
        raise _refused(
            store,
            "history_retention",
            "the topic keeps the newest row of each key only, so a restore would lack the older ones",
        )
    if topic.timestamp_extractor is not None:
        raise _refused(
            store,
            f"topic {topic.name} has a timestamp_extractor",
            "a restore would have to call it again, in processes that do not load the application",
        )
    if topic.formats.model is not None:
        raise _refused(
            store,
            f"topic {topic.name} has `value={topic.formats.model.__name__}`",
            "a restore reads the records without the application, and so without its classes",
            action="Leave `value` out: rows are then objects of JSON. Or leave `changelog` out.",
        )
    values, keys = name_of_deserializer(topic.deserialize_value), name_of_deserializer(topic.deserialize_key)
    if values not in VALUES or keys is None:
        part, named = ("key", keys) if keys is None else ("value", values)
        raise _refused(
            store,
            f"the {part}_deserializer of topic {topic.name} is {'a function' if named is None else repr(named)}",
            "a restore reads the records without the application"
            if named is None
            else "rows are JSON values, and bytes are none",
            action=f"Write `{part}_deserializer='json'` or `'str'`. Or leave `changelog` out.",
        )
    return SourceLog(store, topic.name, values, keys)


def check_source_tables(
    logs: Sequence[SourceLog],
    sources: Mapping[str, Node],
    declared: Collection[str] | None,
    *,
    skips_old: bool,
    aside: bool,
) -> None:
    """Raises ApplicationInvalid if the application does not allow its tables with ``changelog="source"``.

    Args:
        logs: The descriptions of the topics of these tables.
        sources: For each input topic, the first node (the source) of its stream of steps.
        declared: The stores that ``app.store`` or ``changelog_config`` names; None if the application has no
            changelogs.
        skips_old: Whether the application has ``auto_offset_reset="latest"``.
        aside: Whether the worker continues after a failed message: it has a dead-letter topic or
            ``on_processing_error``.
    """
    for log in logs:
        if declared is None:
            raise _refused(
                log.store,
                "use_changelog_topics is off",
                "no store of the application is restored from Kafka then",
                action="Leave `use_changelog_topics` out. Or leave `changelog` out: the table is then on the local "
                "disk only, and is lost with it.",
            )
        if skips_old:
            raise _refused(
                log.store,
                "auto_offset_reset is 'latest'",
                "the table would begin without the rows that a restore brings back",
                action="Write `Application(..., auto_offset_reset='earliest')`, or leave `changelog` out.",
            )
        if log.store in declared:
            raise _refused(
                log.store,
                "the store is named in `app.store` or `changelog_config`",
                "its values and its topic are not the application's",
                action="Take the store out there, or leave `changelog` out.",
            )
        behind = sources[log.topic].walk()[2:]
        if behind and aside:
            raise _refused(
                log.store,
                f"the table has a step behind it ({behind[0].kind}), and failed messages are put aside",
                "a message that fails in that step is in the topic and not in the table, so a restore would bring it "
                "back",
                action="Leave `changelog` out, or leave `dead_letter_topic` and `on_processing_error` out.",
            )


def check_time_of_tables(
    logs: Sequence[SourceLog], stores: Sequence[StoreSpec], subs: Sequence[Subtopology], *, aside: bool
) -> None:
    """Raises ApplicationInvalid if a table's message may fail because of its event time, and the worker then skips it.

    The failed row is in the topic but not in the table, so a restore from the topic would add it. ``aside`` is True if
    the worker continues after a failed message.
    """
    timed = {each.name for each in stores if (each.timed and each.follows_input) or each.kind == "window"}
    for log in logs:
        sub = next(each for each in subs if log.topic in each.inputs)
        if aside and timed & set(sub.stores):
            raise _refused(
                log.store,
                f"its messages share a task with store {min(timed & set(sub.stores))}, which keeps time, and failed "
                "messages are put aside",
                "a row that is too far ahead of the clock is in the topic and not in the table, so a restore would "
                "bring it back",
                action="Leave `changelog` out, or leave `dead_letter_topic` and `on_processing_error` out.",
            )


def _refused(store: str, seen: str, why: str, *, action: str = _OWN) -> ApplicationInvalid:
    return ApplicationInvalid(
        f"Table {store!r} can't have `changelog='source'`, because {seen}: {why}.", action=action, store=store
    )
