"""The step arguments on which state depends, in one table, and the lines that record their values.

State that was made with one value does not fit another value. So a deployment and a worker compare the lines of the
previous version with the new lines. A line is ``<step> <of what>: <argument> = <value>``, such as ``group_by day: key =
field day``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

from holdfast.processors.engine.steps.function_text import hash_of
from holdfast.processors.engine.steps.group_key import text_of_key
from holdfast.processors.engine.topology import Topology

#: What an argument is for state.
#:     key         which key or row state belongs to: with another one, the state is of another thing, and refused
#:     rule        how state is made from now on: a change is told
#:     columns     part of the store's ``columns`` or its TTL, which have rules of their own (``verbs.compatibility``)
#:     function    a user's function or model, whose source is part of the version; what it stores is the user's
#:     tuning      cost and waiting only
#:     neither     a name, another stream or table, or something that no state depends on
Role = Literal["key", "rule", "columns", "function", "tuning", "neither"]


def _roles(**by_role: str) -> Mapping[str, Role]:
    return {name: role for role, names in by_role.items() for name in names.split()}  # type: ignore[misc]


_WINDOW = "duration_ms grace_ms retention triggers"
_AWAITED = "concurrency order timeout"

#: By method, the role of each argument. Tidy compares the table with the signatures.
ARGUMENTS: Mapping[str, Mapping[str, Role]] = {
    "apply": _roles(function="func model", columns="stateful", neither="expand metadata store"),
    "update": _roles(function="func model", columns="stateful", neither="metadata store"),
    "filter": _roles(function="func model", columns="stateful", neither="metadata store"),
    "process": _roles(function="processor", neither="store"),
    "aggregate": _roles(rule="of", columns="columns named", function="model", neither="store"),
    "drop_duplicates": _roles(key="by", columns="within remember", neither="store"),
    "moving_average": _roles(rule="of", columns="over into remember", neither="store"),
    "to_topic": _roles(neither="topic key headers"),
    "set_timestamp": _roles(function="func"),
    "set_headers": _roles(function="func"),
    "suppress": _roles(columns="every"),
    "print": _roles(neither="pretty metadata"),
    # An expression of columns is part of the version by its text, as a function is by its source.
    "contains": _roles(function="keys"),
    "fill": _roles(function="columns mapping"),
    "drop": _roles(function="columns errors"),
    "rename": _roles(function="columns errors"),
    "concat": _roles(neither="other"),
    "group_by": _roles(
        key="key key_serializer",
        tuning="partitions",
        neither="name value_deserializer key_deserializer value_serializer",
    ),
    "to_table": _roles(rule="history_retention", function="model", neither="name"),
    "join_table": _roles(key="on", rule="how on_merge", neither="table"),
    "join_asof": _roles(key="right", rule="how on_merge grace_ms tolerance_ms", neither="name"),
    "join_interval": _roles(key="right", rule="how on_merge grace_ms backward_ms forward_ms", neither="name"),
    "join": _roles(key="other on", rule="how on_merge", function="model", neither="name"),
    "apply_async": _roles(function="func", tuning=_AWAITED),
    "join_lookup": _roles(
        key="on", rule="fields how on_merge default", function="lookup", tuning=f"ttl cache_size {_AWAITED}"
    ),
    "tumbling_window": _roles(rule="of", columns=_WINDOW, neither="name on_late"),
    "hopping_window": _roles(rule="of", columns=f"step_ms {_WINDOW}", neither="name on_late"),
    "sliding_window": _roles(rule="of", columns="duration_ms grace_ms", neither="name on_late"),
    "session_window": _roles(rule="of", columns="inactivity_gap_ms grace_ms retention", neither="name on_late"),
    "tumbling_count_window": _roles(rule="of", columns="count", neither="name"),
    "hopping_count_window": _roles(rule="of", columns="count step", neither="name"),
    "sliding_count_window": _roles(rule="of", columns="count", neither="name"),
    "current": _roles(columns="closing_strategy"),
    "final": _roles(columns="closing_strategy close_when_idle"),
    "table": _roles(rule="history_retention", columns="changelog", function="model", neither="topic name"),
    "to_stream": {},
}
_FUNCTION = "function "
#: The roles whose arguments are recorded in lines.
RECORDED: frozenset[Role] = frozenset({"key", "rule"})


def recorded(step: str) -> tuple[str, ...]:
    """The arguments of a step that are recorded in lines."""
    return tuple(name for name, role in ARGUMENTS[step].items() if role in RECORDED)


def lines_of(step: str, of: str, /, **given: Any) -> tuple[str, ...]:
    """The lines of a step; ``of`` distinguishes it from other steps of its kind. All recorded arguments are given.

    An empty mapping has no line.
    """
    if missing := set(recorded(step)) ^ set(given):
        raise AssertionError(f"arguments of {step} are not as in the table: {', '.join(sorted(missing))}")
    return tuple(f"{step} {of}: {name} = {_shown(given[name])}" for name in recorded(step) if given[name] != {})


def field_or_function(by: Any) -> str:
    """A key in the form of a line: a field, a function, or the message's own key."""
    return f"field {by}" if isinstance(by, str) else "the message's key" if by is None else _shown(by)


def _shown(value: Any) -> str:
    if value is text_of_key:
        return "text"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_shown(each)}" for name, each in sorted(value.items())) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value)) or "none"
    if callable(value):
        return f"{_FUNCTION}{hash_of(value)}"
    return "none" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Difference:
    """An argument whose line differs; ``was`` or ``now`` is empty if a version lacks the step."""

    argument: str
    was: str
    now: str
    #: Whether the state belongs to another key.
    is_key: bool

    def __str__(self) -> str:
        return f"{self.argument} was {self.was or 'not there'}, now {self.now or 'not there'}"


def differences(was: Sequence[str], now: Sequence[str]) -> tuple[Difference, ...]:
    """The differences between the recorded lines of two versions of a store, in the order of the new lines."""
    before, after = _by_argument(was), _by_argument(now)
    changed = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    return tuple(
        Difference(name, was := before.get(name, ""), now := after.get(name, ""), bool(was and now) and _is_key(name))
        for name in changed
    )


@lru_cache(maxsize=1024)
def key_lines(meaning: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of keys: they are recorded with the state, because state of other keys is refused."""
    return tuple(line for line in meaning if _is_key(line.partition(" = ")[0]))


def keys_of(topology: Topology) -> Mapping[str, tuple[str, ...]]:
    """By store, the rules of its keys; no entry for stores whose keys are the keys of their topics."""
    return {store.name: lines for store in topology.stores if (lines := key_lines(store.meaning))}


def how_to_keep(changed: Iterable[Difference]) -> str:
    """The edit if only functions differ, which may still give the same keys; empty if anything else differs."""
    functions = [each.was.partition(_FUNCTION)[2] for each in changed if each.is_key]
    if not functions or not all(functions):
        return ""
    marks = "`, `".join(f'@same_as("{was}")' for was in dict.fromkeys(functions))
    return f" If the new function gives the same keys, write `{marks}` over it (`from holdfast import same_as`)."


def _by_argument(lines: Iterable[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(" = ") for line in lines)}


def _is_key(argument: str) -> bool:
    step, name = argument.partition(" ")[0], argument.rpartition(": ")[2]
    return ARGUMENTS.get(step, {}).get(name) == "key"


def functions_of(columns: Mapping[str, Any]) -> dict[str, list[Callable[..., Any]]]:
    """By column of an aggregation, its functions; columns without functions are left out."""
    found = {
        name: [held for each in fields(made) if callable(held := getattr(made, each.name))]
        for name, made in columns.items()
    }
    return {name: made for name, made in found.items() if made}
