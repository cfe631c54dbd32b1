"""Records, as lines of text, the arguments of the steps on which state depends.

If such an argument is changed, the existing state may no longer fit the steps. A deployment and a worker therefore
compare the recorded lines of the previous version with the new lines. A line has the form ``<step> <of what>:
<argument> = <value>``, for example ``group_by day: key = field day``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

from holdfast.processors.engine.steps.function_text import hash_of
from holdfast.processors.engine.steps.group_key import text_of_key
from holdfast.processors.engine.topology import Topology

#: How a change of a step's argument affects the step's state.
#:     ``key``         decides which key or row the state belongs to; a change of the argument is refused
#:     ``rule``        decides how state is computed from now on; a change of the argument is reported
#:     ``columns``     a part of the store's ``columns`` or its TTL, for which ``compatibility`` has rules
#:     ``function``    a user's function or model; its source is a part of the processor's version
#:     ``tuning``      affects only cost and waiting times
#:     ``neither``     a name, another stream or table, or an argument on which no state depends
Role = Literal["key", "rule", "columns", "function", "tuning", "neither"]


def _roles(**by_role: str) -> Mapping[str, Role]:
    return {name: role for role, names in by_role.items() for name in names.split()}  # type: ignore[misc]


_WINDOW = "duration_ms grace_ms retention triggers"
_AWAITED = "concurrency order timeout"

#: Maps each method of a stream to the roles of its arguments. The test ``tests/tidy/test_step_arguments.py`` compares
#: this table with the signatures of the methods.
ARGUMENTS: Mapping[str, Mapping[str, Role]] = {
    "apply": _roles(function="func model", columns="stateful", neither="expand metadata store"),
    "update": _roles(function="func model", columns="stateful", neither="metadata store"),
    "filter": _roles(function="func model", columns="stateful", neither="metadata store"),
    "process": _roles(function="processor", neither="store"),
    "aggregate": _roles(rule="of", columns="columns named", function="model", neither="store"),
    "drop_duplicates": _roles(key="by", columns="within remember", neither="store"),
    "moving_average": _roles(rule="of", columns="over into remember", neither="store"),
    "to_topic": _roles(neither="topic key headers timestamp"),
    "sink": _roles(neither="sink"),
    "set_timestamp": _roles(function="func"),
    "set_headers": _roles(function="func"),
    "suppress": _roles(columns="every"),
    "print": _roles(neither="pretty metadata"),
    "print_table": _roles(neither="size title metadata timeout live live_slowdown columns column_widths"),
    # The text of a column expression is a part of the processor's version, as is the source of a function.
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
    # The following methods are methods of a table. The prefix `table_` distinguishes them from methods of a stream.
    "table_filter": _roles(rule="func", function="model", neither="name"),
    "table_map": _roles(rule="func", function="model", neither="name"),
    "table_group_by": _roles(key="key", neither="name"),
    # `columns` has the role `key`: rows that were added to a group with the old columns can't be taken out of it with
    # the new ones.
    "table_aggregate": _roles(key="columns", rule="of", columns="named", function="model", neither="name"),
    "apply_async": _roles(function="func", columns="ttl", tuning=_AWAITED, neither="durable store"),
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
#: The roles of arguments whose values are recorded with the processor's version, one line of text for each argument.
RECORDED: frozenset[Role] = frozenset({"key", "rule"})


def recorded(step: str) -> tuple[str, ...]:
    """Returns the names of those arguments of a step whose values are recorded with the processor's version."""
    return tuple(name for name, role in ARGUMENTS[step].items() if role in RECORDED)


def lines_of(step: str, of: str, /, **given: Any) -> tuple[str, ...]:
    """Returns a line of text for each recorded argument of a step, for example ``group_by day: key = field day``.

    ``of`` distinguishes the step from other steps of the same method, for example ``day``. ``given`` has a value for
    each argument that must be recorded. An argument that is an empty mapping gets no line.
    """
    if missing := set(recorded(step)) ^ set(given):
        raise AssertionError(f"arguments of {step} are not as in the table: {', '.join(sorted(missing))}")
    return tuple(f"{step} {of}: {name} = {_shown(given[name])}" for name in recorded(step) if given[name] != {})


def field_or_function(by: Any) -> str:
    """Returns a text that says how a step computes a key.

    The text is the field's name, the function's hash, or "the message's key" if ``by`` is None.
    """
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
    """An argument of a step whose recorded value differs between two versions of a processor.

    ``was`` and ``now`` are the values as text. A text is empty if that version has no such argument.
    """

    argument: str
    was: str
    now: str
    #: Whether the change would assign existing state to other keys. Such a change is refused.
    is_key: bool

    def __str__(self) -> str:
        return f"{self.argument} was {self.was or 'not there'}, now {self.now or 'not there'}"


def differences(was: Sequence[str], now: Sequence[str]) -> tuple[Difference, ...]:
    """Compares the recorded arguments of two processor versions for a store. Returns those that differ.

    ``was`` and ``now`` are the lines of text that describe the arguments. The result has the order of ``now``.
    """
    before, after = _by_argument(was), _by_argument(now)
    changed = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    return tuple(
        Difference(name, was := before.get(name, ""), now := after.get(name, ""), bool(was and now) and _is_key(name))
        for name in changed
    )


@lru_cache(maxsize=1024)
def key_lines(meaning: tuple[str, ...]) -> tuple[str, ...]:
    """Returns those lines of ``meaning`` that describe an argument by which a step computes keys.

    These lines are also stored with the state, so that a worker refuses state that was written with other keys.
    """
    return tuple(line for line in meaning if _is_key(line.partition(" = ")[0]))


def keys_of(topology: Topology) -> Mapping[str, tuple[str, ...]]:
    """Maps each store to the lines of text that say how the steps before it compute keys.

    Stores that use the message keys of their topics have no entry.
    """
    return {store.name: lines for store in topology.stores if (lines := key_lines(store.meaning))}


def how_to_keep(changed: Iterable[Difference]) -> str:
    """Returns a sentence for the error about changed keys: which ``same_as`` decorators would keep the state.

    These decorators are correct only if the new functions give the same keys as the old ones. The text is empty if a
    key differs in more than its function.
    """
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
    """Returns the user functions of each column of an aggregation. Columns without functions are left out."""
    found = {
        name: [held for each in fields(made) if callable(held := getattr(made, each.name))]
        for name, made in columns.items()
    }
    return {name: made for name, made in found.items() if made}
