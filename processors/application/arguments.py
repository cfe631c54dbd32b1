"""Checks the arguments of ``Application`` when it is declared."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from holdfast.infra.errors import BadConfiguration
from holdfast.processors.engine.backends import BACKENDS
from holdfast.processors.engine.changelog.config import chosen_config
from holdfast.processors.engine.changelog.names import check_name
from holdfast.processors.engine.runtime.commit_pace import Bounds
from holdfast.processors.engine.runtime.task.failure_policy import Callbacks
from holdfast.processors.engine.steps.signatures import is_async, refuses, written
from holdfast.processors.engine.topology import CALLS, StoreSpec, Topology

Guarantee = Literal["exactly-once", "at-least-once"]
#: Seconds between commits if the user sets no interval: 0.1 while the worker keeps up, 1.0 while it catches up.
COMMIT_INTERVAL_MIN_S, COMMIT_INTERVAL_S = 0.1, 1.0
#: Maximum ``commit_interval`` that a user may set, in seconds. It is well below ``TRANSACTION_S``, after which the
#: broker aborts a transaction.
COMMIT_INTERVAL_MAX_S = 10.0


class ApplicationInvalid(BadConfiguration):
    """The declaration of an application has an invalid argument."""


def _wrong(name: str, seen: object, expected: str) -> ApplicationInvalid:
    return ApplicationInvalid(f"{name} is {seen!r}, expected {expected}.", action=f"Correct `{name}`.", seen=str(seen))


def one_of(name: str, seen: str, allowed: Iterable[str]) -> None:
    """Raises ApplicationInvalid unless ``seen`` is one of the allowed values."""
    if seen not in (values := tuple(allowed)):
        raise _wrong(name, seen, f"one of {', '.join(values)}")


def at_least(name: str, seen: float, least: float) -> None:
    """Raises ApplicationInvalid unless ``seen`` is a number of at least ``least``."""
    if isinstance(seen, bool) or not isinstance(seen, int | float) or not seen >= least:
        raise _wrong(name, seen, f"a number, {least:g} or more")


def whole_number(name: str, seen: int, least: int) -> None:
    """Raises ApplicationInvalid unless ``seen`` is a whole number of at least ``least``."""
    if isinstance(seen, bool) or not isinstance(seen, int) or seen < least:
        raise _wrong(name, seen, f"a whole number, {least} or more")


def of_type(kind: type, **arguments: object) -> None:
    """Raises ApplicationInvalid unless each argument has this type or is None."""
    for name, seen in arguments.items():
        if seen is not None and not isinstance(seen, kind):
            raise _wrong(name, seen, f"a {kind.__name__}, not a {type(seen).__name__}")


def check_state(backend: str, use_changelogs: bool, standby_replicas: int | None) -> None:
    """Refuses combinations of arguments with which state would not survive a restart or a failover.

    Args:
        backend: The argument ``state_backend``.
        use_changelogs: The argument ``use_changelog_topics``.
        standby_replicas: The argument ``standby_replicas``; None means that the settings decide.

    Raises:
        ApplicationInvalid: The combination keeps no state, or one of the arguments is invalid.
    """
    one_of("state_backend", backend, BACKENDS)
    of_type(bool, use_changelog_topics=use_changelogs)
    if standby_replicas is not None:
        whole_number("standby_replicas", standby_replicas, 0)
    durable = BACKENDS[backend].durable
    if not durable and not use_changelogs:
        raise ApplicationInvalid(
            f"state_backend is {backend} and use_changelog_topics is off: every restart would begin without state.",
            action="Set `use_changelog_topics=True`, or `state_backend='rocksdb'`.",
        )
    if standby_replicas and not (durable and use_changelogs):
        why = "use_changelog_topics is off" if durable else f"state_backend is {backend}"
        raise ApplicationInvalid(
            f"standby_replicas is {standby_replicas}, but {why}: a standby copies changelogs to a disk.",
            action="Leave `standby_replicas` out, or keep state in RocksDB with changelogs.",
            seen=standby_replicas,
        )


def check_names(**names: str | None) -> None:
    """Raises IllegalName unless each name is None or can be a part of a topic's name."""
    for argument, name in names.items():
        if name is not None:
            check_name(name, argument.replace("_", " "))


def check_log_level(level: str | None) -> None:
    """Raises ApplicationInvalid unless ``level`` is None or a level of Python's logging."""
    if level is not None and level not in logging.getLevelNamesMapping():
        one_of("loglevel", level, ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))


def check_changelog_config(
    config: Mapping[str, Mapping[str, Any]] | None, use_changelogs: bool
) -> dict[str, dict[str, Any]]:
    """Returns the additional configuration entries of each store's changelog.

    Raises:
        ApplicationInvalid: ``config`` is not a mapping of stores to entries, or changelogs are off.
        ChangelogConfigInvalid: An entry could lose state, or has an invalid value.
    """
    if config is None:
        return {}
    if not isinstance(config, Mapping) or not all(isinstance(entries, Mapping) for entries in config.values()):
        raise ApplicationInvalid(
            f"changelog_config is {config!r}, expected a mapping of stores to entries.",
            action='Write `changelog_config={"<store>": {"<entry>": "<value>"}}`.',
            seen=str(config),
        )
    if config and not use_changelogs:
        raise ApplicationInvalid(
            "changelog_config is given, but use_changelog_topics is off: there is no changelog to configure.",
            action="Leave `changelog_config` out, or set `use_changelog_topics=True`.",
        )
    for store, entries in config.items():
        chosen_config(store, entries)
    return {store: dict(entries) for store, entries in config.items()}


def check_stores_named(argument: str, named: Iterable[str], stores: Iterable[str]) -> None:
    """Raises ApplicationInvalid unless each named store is a store of the application."""
    known = sorted(stores)
    for store in named:
        if store not in known:
            raise ApplicationInvalid(
                f"{argument} names the store {store!r}, which no step uses; the stores are "
                f"{', '.join(known) or 'none'}.",
                action=f"Correct the store's name in `{argument}`, or name the store in a step: `store={store!r}`.",
                store=store,
            )


def check_renamed_stores(renamed: Mapping[str, str] | None) -> Mapping[str, str]:
    """Checks the argument ``renamed_stores`` and returns it: a mapping from new names of stores to their former names.

    Raises:
        ApplicationInvalid: A name is not a text, or a former name occurs twice.
    """
    checked = dict(renamed or {})
    for new, old in checked.items():
        of_type(str, renamed_stores=new)
        of_type(str, renamed_stores=old)
        if old in checked or list(checked.values()).count(old) > 1:
            raise ApplicationInvalid(
                f"renamed_stores has {old!r} more than once; expected one store for each former name.",
                action=f"Keep one entry of `renamed_stores` with {old!r}, and give that name to no other store.",
                store=old,
            )
    return checked


def check_dead_letters(group: str, dead_letter_topic: str | None, taken: Iterable[str]) -> None:
    """Raises ApplicationInvalid if the application uses its dead-letter topic also as an input or output."""
    if dead_letter_topic is not None and dead_letter_topic in taken:
        raise ApplicationInvalid(
            f"dead_letter_topic is {dead_letter_topic}, which application {group} also reads or writes: dead letters "
            "would be read as input, or as results.",
            action="Set `dead_letter_topic` to a topic that is used for nothing else.",
            topic=dead_letter_topic,
        )


def check_own_topics(group: str, own: Iterable[str], others: Iterable[str]) -> None:
    """Raises ApplicationInvalid if the application also uses one of its repartition topics as an input or output."""
    for topic in sorted(set(own) & set(others)):
        raise ApplicationInvalid(
            f"Application {group} uses {topic} besides, but it is the topic of a `group_by`: other records would be "
            "taken for grouped messages, and all are deleted once processed.",
            action="Use another topic, or give the `group_by` another `name`.",
            topic=topic,
        )


def check_late(windows: Iterable[str], *, goes_somewhere: bool) -> None:
    """Raises ApplicationInvalid for windows with ``on_late="dead-letter"`` if failed messages stop the worker.

    A late message of such a window counts as failed. Without a dead-letter topic or an error callback, it would stop
    the worker.
    """
    for store in windows:
        if not goes_somewhere:
            raise ApplicationInvalid(
                f'Window {store!r} has on_late="dead-letter", but the application has no dead_letter_topic: the first '
                "late message would stop the worker.",
                action='Write `Application(..., dead_letter_topic="late")`, or leave `on_late` out to drop late '
                "messages.",
                store=store,
            )


def callbacks_of(processing: Any, consumer: Any, producer: Any, processed: Any) -> Callbacks:
    """Checks and returns the callbacks that the user passed to ``Application``.

    Raises ApplicationInvalid for an object that can't be called with the callback's arguments, or is async.
    """
    errors = {"on_processing_error": processing, "on_consumer_error": consumer, "on_producer_error": producer}
    expected = {name: (given, ("error", "message", "logger")) for name, given in errors.items()}
    expected["on_message_processed"] = processed, ("topic", "partition", "offset")
    for name, (given, takes) in expected.items():
        if given is not None and (refuses(given, len(takes)) or is_async(given)):
            seen = written(given) if callable(given) else repr(given)[:80]
            raise ApplicationInvalid(
                f"`{name}` is {'async: ' if is_async(given) else ''}{seen}; expected a function of "
                f"({', '.join(takes)}).",
                action=f"Write `def function({', '.join(takes)})`, also where it does not need them all.",
                seen=seen,
            )
    return Callbacks(processing, consumer, producer, processed)


def check_time(stores: Iterable[StoreSpec], *, loses_commits: bool) -> None:
    """Raises ApplicationInvalid if an exactly-once application without changelogs uses windows, TTL or timers.

    When a window closes, a timer fires or a value expires, a commit may change no input offset. Only a changelog then
    shows, after a crash, whether the commit has happened.
    """
    for store in stores:
        if loses_commits and (store.kind == "window" or store.timed):
            what = "windows" if store.kind == "window" else " and ".join(store.columns)
            raise ApplicationInvalid(
                f"Store {store.name!r} has {what}, but use_changelog_topics is off: results could be sent twice.",
                action="Set `use_changelog_topics=True`, or `processing_guarantee='at-least-once'`.",
                store=store.name,
            )


def check_calls(unlogged: Iterable[StoreSpec]) -> None:
    """Raises ApplicationInvalid for a store with answers of durable calls among stores without changelogs.

    The commit of an answer changes no input offset. Without a changelog, the answer would be lost with the local disk.
    """
    for store in unlogged:
        if store.kind == CALLS:
            raise ApplicationInvalid(
                f"Store {store.name!r} has answers of durable calls, but use_changelog_topics is off: answers would be "
                "lost with the disk, and their calls repeated.",
                action="Set `use_changelog_topics=True`, or take `durable=True` out.",
                store=store.name,
            )


def check_time_before_groups(stores: Iterable[StoreSpec], feeds: Mapping[str, Collection[str]]) -> None:
    """Raises ApplicationInvalid if an application without changelogs uses timers or TTL before a ``group_by``.

    A timer's commit may change no input offset. Without a changelog, nothing shows after a crash whether the commit has
    happened. The timer would then send its messages to the repartition topic twice.

    ``feeds`` maps each repartition topic to the inputs whose messages reach this topic.
    """
    for store in stores:
        topic = next((topic for topic, inputs in feeds.items() if set(inputs) & set(store.inputs)), None)
        if store.timed and topic is not None:
            raise ApplicationInvalid(
                f"Store {store.name!r} has {' and '.join(store.columns)}, and messages of its task go to {topic}, but "
                "use_changelog_topics is off: messages could be grouped twice.",
                action="Set `use_changelog_topics=True`, or leave the `group_by` out.",
                store=store.name,
                topic=topic,
            )


def check_strategy(consumer_config: Mapping[str, Any], topology: Topology) -> None:
    """Raises ApplicationInvalid if the assignment strategy may separate input topics that share a store.

    One group member must own partition n of all topics that share a store. Of librdkafka's strategies, only
    ``range`` ensures this.
    """
    strategy = str(consumer_config.get("partition.assignment.strategy", "range"))
    shared = [sub for sub in topology.subtopologies if len(sub.inputs) > 1]
    if shared and {name.strip() for name in strategy.split(",")} != {"range"}:
        raise ApplicationInvalid(
            f"{' and '.join(shared[0].inputs)} share a store, so one worker must own partition n of each; "
            f"partition.assignment.strategy {strategy} assigns them separately, expected range.",
            action="Take `partition.assignment.strategy` out of `consumer_extra_config`.",
            seen=strategy,
        )


def commit_bounds(longest: float | None, shortest: float | None, guarantee: Guarantee) -> Bounds:
    """Checks and returns the shortest and the longest time between commits, in seconds.

    Args:
        longest: The argument ``commit_interval``.
        shortest: The argument ``commit_interval_min``.
        guarantee: The argument ``processing_guarantee``.

    Raises:
        ApplicationInvalid: An argument is not a valid interval, or is longer than a transaction may stay open.
    """
    if longest is None:
        longest, shortest = COMMIT_INTERVAL_S, COMMIT_INTERVAL_MIN_S if shortest is None else shortest
    shortest = longest if shortest is None else shortest
    at_least("commit_interval", longest, 0.0)
    at_least("commit_interval_min", shortest, 0.0)
    if shortest > longest:
        raise ApplicationInvalid(
            f"commit_interval_min is {shortest:g} s, expected at most commit_interval, which is {longest:g} s.",
            action="Leave `commit_interval_min` out for a constant interval.",
            seen=shortest,
            expected=longest,
        )
    if guarantee == "exactly-once" and longest > COMMIT_INTERVAL_MAX_S:
        from holdfast.infra.kafka.clients.producer import TRANSACTION_S

        raise ApplicationInvalid(
            f"commit_interval is {longest:g} s, expected at most {COMMIT_INTERVAL_MAX_S:g} s: the broker aborts a "
            f"transaction after {TRANSACTION_S:g} s.",
            action=f"Set `commit_interval` to at most {COMMIT_INTERVAL_MAX_S:g}, or "
            "`processing_guarantee='at-least-once'`.",
            seen=longest,
        )
    return Bounds(shortest, longest)
