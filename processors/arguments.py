"""What an application may be told, checked before anything runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.processors.engine.changelog.config import chosen_config
from holdfast.processors.engine.runtime.pace import Bounds
from holdfast.processors.engine.topology import Topology

#: Between these the interval between commits adapts where nothing else was asked for, in seconds.
COMMIT_INTERVAL_MIN_S, COMMIT_INTERVAL_S = 0.1, 1.0
#: The broker aborts a transaction after 15 s: a commit has to come well before.
COMMIT_INTERVAL_MAX_S = 10.0

Guarantee = Literal["exactly-once", "at-least-once"]


class ApplicationInvalid(HoldfastError):
    """An application was declared in a way that can't run."""

    exit_code = EXIT_BAD_CONFIGURATION


def commit_bounds(longest: float | None, shortest: float | None, guarantee: Guarantee) -> Bounds:
    """The seconds between commits that an application asks for.

    Args:
        longest: Its ``commit_interval``.
        shortest: Its ``commit_interval_min``.
        guarantee: What it promises.

    Raises:
        ApplicationInvalid: They are no interval, or longer than a transaction may be open.
    """
    if longest is None:
        longest, shortest = COMMIT_INTERVAL_S, COMMIT_INTERVAL_MIN_S if shortest is None else shortest
    shortest = longest if shortest is None else shortest
    at_least("commit_interval", longest, 0.0)
    at_least("commit_interval_min", shortest, 0.0)
    if shortest > longest:
        raise ApplicationInvalid(
            f"commit_interval_min is {shortest:g} s, expected at most commit_interval, which is {longest:g} s.",
            action="Leave commit_interval_min out for always the same interval.",
            seen=shortest,
            expected=longest,
        )
    if guarantee == "exactly-once" and longest > COMMIT_INTERVAL_MAX_S:
        raise ApplicationInvalid(
            f"commit_interval is {longest:g} s, but a transaction lives 15 s at the most.",
            action=f"Use at most {COMMIT_INTERVAL_MAX_S:g} s, or the guarantee at-least-once.",
            seen=longest,
        )
    return Bounds(shortest, longest)


def one_of(name: str, seen: str, allowed: tuple[str, ...]) -> None:
    """Refuse what is not among the allowed.

    Raises:
        ApplicationInvalid: It is not.
    """
    if seen not in allowed:
        raise ApplicationInvalid(
            f"{name} is {seen!r}, expected one of {', '.join(allowed)}.", action=f"Correct {name}.", seen=seen
        )


def at_least(name: str, seen: float, least: float) -> None:
    """Refuse what is less, or no number at all.

    Raises:
        ApplicationInvalid: It is.
    """
    if isinstance(seen, bool) or not isinstance(seen, int | float) or not seen >= least:
        raise ApplicationInvalid(
            f"{name} is {seen!r}, expected a number, {least:g} or more.", action=f"Correct {name}.", seen=str(seen)
        )


def whole_number(name: str, seen: int, least: int) -> None:
    """Refuse what is less, or no whole number.

    Raises:
        ApplicationInvalid: It is.
    """
    if isinstance(seen, bool) or not isinstance(seen, int) or seen < least:
        raise ApplicationInvalid(
            f"{name} is {seen!r}, expected a whole number, {least} or more.", action=f"Correct {name}.", seen=str(seen)
        )


def of_type(kind: type, **arguments: object) -> None:
    """Refuse arguments of another type; None stands for what was not given.

    Raises:
        ApplicationInvalid: One is.
    """
    for name, seen in arguments.items():
        if seen is not None and not isinstance(seen, kind):
            raise ApplicationInvalid(
                f"{name} is {seen!r}, a {type(seen).__name__}; expected a {kind.__name__}.",
                action=f"Correct {name}.",
                seen=type(seen).__name__,
            )


def check_state(backend: str, use_changelogs: bool, standby_replicas: int | None) -> None:
    """Refuse ways to keep state that would not do what they promise.

    Args:
        backend: The ``state_backend``.
        use_changelogs: ``use_changelog_topics``.
        standby_replicas: As given; None leaves it to the settings.

    Raises:
        ApplicationInvalid: They do not go together.
    """
    one_of("state_backend", backend, ("rocksdb", "memory"))
    of_type(bool, use_changelog_topics=use_changelogs)
    if standby_replicas is not None:
        whole_number("standby_replicas", standby_replicas, 0)
    if backend == "memory" and not use_changelogs:
        raise ApplicationInvalid(
            "state_backend is memory and use_changelog_topics is off: every restart would begin without state.",
            action="Keep changelogs on, or use state_backend='rocksdb'.",
        )
    if standby_replicas and (backend == "memory" or not use_changelogs):
        why = "state_backend is memory" if backend == "memory" else "use_changelog_topics is off"
        raise ApplicationInvalid(
            f"standby_replicas is {standby_replicas}, but {why}: nothing could be followed on a disk.",
            action="Leave standby_replicas out, or keep state in RocksDB with changelogs.",
            seen=standby_replicas,
        )


def check_log_level(level: str | None) -> None:
    """Refuse what is no level of Python's logging; None leaves logging alone.

    Raises:
        ApplicationInvalid: It is none.
    """
    if level is not None and level not in logging.getLevelNamesMapping():
        one_of("loglevel", level, ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))


def check_changelog_config(
    config: Mapping[str, Mapping[str, Any]] | None, use_changelogs: bool
) -> dict[str, dict[str, Any]]:
    """The configuration that stores' changelogs get over the standard one, by store.

    Raises:
        ApplicationInvalid: It is not by store, or there are no changelogs.
        holdfast.processors.engine.changelog.config.ChangelogConfigInvalid: An entry could lose state, or is none.
    """
    if config is None:
        return {}
    if not isinstance(config, Mapping) or not all(isinstance(entries, Mapping) for entries in config.values()):
        raise ApplicationInvalid(
            f"changelog_config is {config!r}, expected a mapping of stores to entries.",
            action='Write {"<store>": {"<entry>": "<value>"}}.',
            seen=str(config),
        )
    if config and not use_changelogs:
        raise ApplicationInvalid(
            "changelog_config is given, but use_changelog_topics is off.", action="Leave one of the two out."
        )
    for store, entries in config.items():
        chosen_config(store, entries)
    return {store: dict(entries) for store, entries in config.items()}


def check_stores_named(argument: str, named: Iterable[str], stores: Iterable[str]) -> None:
    """Refuse settings of stores that are not there.

    Raises:
        ApplicationInvalid: There is no store of a name.
    """
    known = sorted(stores)
    for store in named:
        if store not in known:
            raise ApplicationInvalid(
                f"{argument} names the store {store!r}; the application has {', '.join(known) or 'none'}.",
                action="Correct the name.",
                store=store,
            )


def check_renamed_stores(renamed: Mapping[str, str] | None) -> Mapping[str, str]:
    """Refuse renames that can't be told apart.

    Raises:
        ApplicationInvalid: One is no name, two stores go on as one, or a former name is given to another store.
    """
    checked = dict(renamed or {})
    for new, old in checked.items():
        of_type(str, renamed_stores=new)
        of_type(str, renamed_stores=old)
        if old in checked or list(checked.values()).count(old) > 1:
            raise ApplicationInvalid(
                f"renamed_stores has {old!r} more than once: whose state it is can't be told.",
                action="Name each former store once, and give its name to no other.",
                store=old,
            )
    return checked


def check_dead_letters(group: str, dead_letter_topic: str | None, taken: Iterable[str]) -> None:
    """Refuse a dead-letter topic that is among those that the application reads or writes.

    Raises:
        ApplicationInvalid: It is.
    """
    if dead_letter_topic is not None and dead_letter_topic in taken:
        raise ApplicationInvalid(
            f"dead_letter_topic is {dead_letter_topic}, which application {group} also reads or writes: what can't be "
            "processed would come back, or be taken for a result.",
            action="Give dead letters a topic of their own.",
            topic=dead_letter_topic,
        )


def check_strategy(consumer_config: Mapping[str, Any], topology: Topology) -> None:
    """Refuse an assignment strategy that parts inputs that share a store.

    Raises:
        ApplicationInvalid: It does.
    """
    strategy = str(consumer_config.get("partition.assignment.strategy", ""))
    shared = [sub for sub in topology.subtopologies if len(sub.inputs) > 1]
    if "cooperative" in strategy and shared:
        raise ApplicationInvalid(
            f"{' and '.join(shared[0].inputs)} share a store, so that partition n of each must be with one worker; "
            f"{strategy} does not keep them together.",
            action="Leave partition.assignment.strategy at range.",
            seen=strategy,
        )
