"""The methods of a stream whose functions await an external system: ``apply_async`` and ``join_lookup``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, cast

from holdfast.processors.engine.joins.enrichment.lookup_classes import BaseField, BaseLookup, LookedUp
from holdfast.processors.engine.joins.lookups import (
    CachedLookup,
    Lookup,
    LookupFields,
    LookupKey,
    LookupMerge,
    LookupOn,
)
from holdfast.processors.engine.joins.merge import JoinInvalid, OnMerge
from holdfast.processors.engine.steps.async_calls import (
    CALLS_WITHIN_MS,
    CONCURRENCY_MAX,
    AsyncCall,
    AsyncInvalid,
)
from holdfast.processors.engine.steps.checked_arguments import check_function
from holdfast.processors.engine.steps.meaning import field_or_function, lines_of
from holdfast.processors.engine.steps.node import Node, steps_of
from holdfast.processors.engine.steps.signatures import is_async
from holdfast.processors.engine.steps.store_options import StoreOptions, declare
from holdfast.processors.engine.store_uses import CallUse

Stream = TypeVar("Stream")

#: The maximum age of the stored answer of a durable call, in milliseconds: 1 day by default, from 1 minute to 10 years.
#: If an answer were too old after its own commit, its call would be repeated without end.
TTL_MS = 86_400_000
TTL_MIN_MS, TTL_MAX_MS = 60_000, 3_650 * TTL_MS


class StreamCalls(Generic[Stream]):
    """The methods of a stream whose functions await an external system: ``apply_async`` and ``join_lookup``."""

    def apply_async(  # tidy: allow-wide because durable calls need a store, as other steps with state do.
        self: Any,
        func: Callable[[Any], Awaitable[Any]],
        *,
        concurrency: int = 16,
        order: Literal["key", "none"] = "key",
        timeout: float | timedelta = 5.0,
        durable: bool = False,
        ttl: float | timedelta | None = None,
        store: str | None = None,
    ) -> Stream:
        """Replaces each value by the result of the async function ``func``. Many calls run at the same time.

        The messages keep their order. After a crash or an aborted commit, a call may be repeated, but its result is
        committed only once. With ``durable``, only a call without a committed answer is repeated. The step must come
        before the stream's steps with state or outputs.

        Args:
            func: An async function of the value.
            concurrency: Maximum number of simultaneous calls for each task, 1 to 1,000. Default 16.
            order: ``key`` starts a call after the previous call for the same key has ended. ``none`` starts a call as
                soon as ``concurrency`` allows it.
            timeout: Maximum duration of a call, in seconds or as a timedelta; at most 10 seconds, 5 by default. A
                longer call fails.
            durable: Whether the answers are committed to a store before the next steps use them. The answers must be
                JSON values.
            ttl: Only with ``durable``: the maximum age of a stored answer, in seconds or as a timedelta; 1 minute to 10
                years, 1 day by default. The call is repeated instead of using an older answer.
            store: Only with ``durable``: the name of the store that has the answers; None means ``<topic>-calls``. A
                new version of the processor uses the stored answers only if the store has the same name.

        Raises:
            AsyncInvalid: ``func`` is not an async function, an argument is out of range, or ``ttl`` or ``store`` is
                given without ``durable``.
            StepInvalid: ``func`` takes other arguments, or the store's name is invalid.
            StoreInvalid: Another step, or ``app.store``, has the store.
        """
        check_async(func, "`apply_async`", ("value",))
        call = _call_of(func, concurrency, order, timeout)
        if not durable:
            _check_durable_only(ttl=ttl, store=store)
            return cast(Stream, self._then(Node("apply", call)))
        kept, answers = self._store(store, f"{self._stem}-calls"), CallUse(_ttl_ms(ttl))
        declare(self.declared, StoreOptions(kept, steps=(answers.text(),)), argument="store")
        made = Node("apply", replace(call, answers=answers), kept, unnamed=self._is_unnamed(store))
        return cast(Stream, self._then(made))

    def join_lookup(  # tidy: allow-wide because the arguments are those of Quix Streams and of apply_async.
        self: Any,
        lookup: Lookup | BaseLookup[Any],
        fields: LookupFields | Mapping[str, BaseField] = None,
        on: LookupOn = None,
        *,
        how: Literal["left", "inner"] = "left",
        on_merge: OnMerge = "raise",
        default: Any = None,
        ttl: float | timedelta = 60.0,
        cache_size: int = 1_000,
        concurrency: int = 16,
        order: Literal["key", "none"] = "key",
        timeout: float | timedelta = 5.0,
    ) -> Stream:
        """Adds a row from another system to each value. An async function reads the row, and a cache keeps it.

        The cache is in the worker's memory, not in the state. The order of messages, the handling of failures and the
        allowed positions in the stream are as for ``apply_async``.

        Args:
            lookup: An async function of the row's key. It returns the row (any value), or raises ``NotFound``. Or a
                ``BaseLookup`` object: it writes the new fields itself, and needs only ``fields`` and ``on``.
            fields: New fields of the value: a mapping from a new name to a field or a function of the row, or a list
                of fields with the same name in value and row. None merges the whole row by ``on_merge``.
            on: The row's key: a field of the value, a function of (value, key), or None for the message's key. If the
                key is None, ``lookup`` is not called, and there is no row.
            how: ``left`` keeps a value without a row, ``inner`` drops it.
            on_merge: A function of (value, row) that merges the two, or the name of a rule; the rules are those of
                ``join_table``.
            default: The row that is used if a key has no row, with ``how="left"``.
            ttl: The time for which an answer is cached, in seconds or as a timedelta. The answer that there is no row
                is cached, too. 0 disables the cache.
            cache_size: Maximum number of cached answers of a worker.
            concurrency: The same as in ``apply_async``.
            order: The same as in ``apply_async``.
            timeout: The same as in ``apply_async``.

        Raises:
            AsyncInvalid: ``lookup`` is not an async function, or an argument is out of range.
            JoinInvalid: ``fields``, ``on``, ``how``, ``on_merge`` or ``default`` is invalid, or two of them contradict
                each other.
            StepInvalid: A function takes other arguments.
        """
        if not isinstance(lookup, BaseLookup):
            check_async(lookup, "`join_lookup`", ("key",))
        if on is not None and not isinstance(on, str) and not callable(on):
            raise JoinInvalid(
                f"`on` is {on!r}, expected a field's name or a function of (value, key).",
                action='Write, for example, `on="plane_id"`, or `on=lambda value, key: value["plane"]["id"]`.',
                seen=repr(on)[:80],
            )
        if callable(on):
            check_function(on, "`on` of `join_lookup`", ("value", "key"))
        if isinstance(lookup, BaseLookup):
            return cast(Stream, self._then(Node("update", _looked_up(lookup, fields, on), metadata=True)))
        merge = LookupMerge(cast(Any, fields), how, on_merge, default)
        cached = CachedLookup(lookup, _kept_s(ttl), _whole("cache_size", cache_size, 1_000_000_000))
        call = replace(_call_of(cached, concurrency, order, timeout), known=cached.known)
        means = lines_of(
            "join_lookup",
            str(getattr(lookup, "__qualname__", type(lookup).__qualname__)),
            on=field_or_function(on),
            fields=fields,
            how=how,
            on_merge=on_merge,
            default=repr(default),
        )
        asked = self._then(Node("apply", LookupKey(on), metadata=True, meaning=means))
        return cast(Stream, asked._then(Node("apply", call))._then(Node("apply", merge, expand=True)))


def _looked_up(lookup: BaseLookup[Any], fields: Any, on: LookupOn) -> LookedUp:
    if isinstance(fields, Mapping) and all(isinstance(each, BaseField) for each in fields.values()):
        return LookedUp(lookup, fields, on)
    raise JoinInvalid(
        f"`fields` of `join_lookup` with {type(lookup).__qualname__} is {fields!r}, expected a mapping of names to its "
        "fields.",
        action='Write, for example, `fields={"device": SQLiteLookupField(...)}`.',
        seen=repr(fields)[:80],
    )


def check_async(func: Any, method: str, arguments: tuple[str, ...]) -> None:
    """Raises AsyncInvalid unless ``func`` is async, and StepInvalid unless it takes these arguments."""
    if not is_async(func):
        raise AsyncInvalid(
            f"{method} got {func!r}, expected an async function.",
            action="Write `async def`, or use `apply` for a function that does not wait.",
            seen=repr(func)[:80],
        )
    check_function(func, method, arguments, awaited=True)


def _call_of(func: Callable[[Any], Awaitable[Any]], concurrency: Any, order: Any, timeout: Any) -> AsyncCall:
    if order not in ("key", "none"):
        raise AsyncInvalid(f"`order` is {order!r}, expected `key` or `none`.", action="Correct it.", seen=order)
    return AsyncCall(func, _whole("concurrency", concurrency, CONCURRENCY_MAX), order == "key", _timeout_ms(timeout))


def _check_durable_only(**given: Any) -> None:
    """Raises AsyncInvalid if an argument of durable calls is given."""
    for name, value in given.items():
        if value is not None:
            raise AsyncInvalid(
                f"`apply_async` got {name}={value!r} without `durable=True`: only durable calls have a store.",
                action=f"Add `durable=True`, or take `{name}` out.",
                seen=name,
            )


def _ttl_ms(ttl: Any) -> int:
    """Returns the maximum age of a stored answer, in milliseconds."""
    if ttl is None:
        return TTL_MS
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if type(seconds) in (int, float) and TTL_MIN_MS <= seconds * 1000 <= TTL_MAX_MS:
        return int(seconds * 1000)
    raise AsyncInvalid(
        f"`ttl` is {ttl!r}, expected seconds or a timedelta, from {TTL_MIN_MS // 1000} seconds to "
        f"{TTL_MAX_MS // TTL_MS:,} days.",
        action="Correct it, or leave it out for one day.",
        seen=repr(ttl)[:80],
    )


def _whole(name: str, given: Any, most: int) -> int:
    if type(given) is int and 1 <= given <= most:
        return given
    raise AsyncInvalid(
        f"`{name}` is {given!r}, expected a whole number from 1 to {most:,}.",
        action="Correct it, or leave it out.",
        seen=repr(given)[:80],
    )


def _kept_s(ttl: Any) -> float:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if type(seconds) in (int, float) and 0 <= seconds < float("inf"):
        return float(seconds)
    raise AsyncInvalid(
        f"`ttl` is {ttl!r}, expected seconds or a timedelta from 0 on.",
        action="Correct it, or leave it out for a minute; 0 keeps no answer.",
        seen=repr(ttl)[:80],
    )


def lookup_figures(sources: Iterable[Node]) -> dict[str, dict[str, int]]:
    """Maps the name of each lookup function in these streams to the figures of its cache.

    The figures are ``hits``, ``misses`` and ``entries``.
    """
    told: dict[str, dict[str, int]] = {}
    for node in steps_of(sources):
        lookup = None if node.call is None else node.call.func
        if isinstance(lookup, CachedLookup):
            seen = told.setdefault(lookup.__qualname__, {"hits": 0, "misses": 0, "entries": 0})
            for name, count in (("hits", lookup.hits), ("misses", lookup.misses), ("entries", lookup.entries)):
                seen[name] += count
    return told


def _timeout_ms(timeout: Any) -> int:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if type(seconds) not in (int, float) or not 0.001 <= seconds <= CALLS_WITHIN_MS / 1000:
        raise AsyncInvalid(
            f"`timeout` is {timeout!r}, expected seconds or a timedelta, from 0.001 to {CALLS_WITHIN_MS // 1000} "
            "seconds: the transaction of the message must not end before the call.",
            action="Correct it. What takes longer belongs in a program of its own, with a topic before and behind it.",
            seen=repr(timeout)[:80],
        )
    return int(seconds * 1000)


def call_of(source: Node) -> tuple[list[Node], Node] | None:
    """Returns the first step that awaits an async function, with the steps before it; None if there is no such step.

    Raises:
        AsyncInvalid: The stream has a branch before this step, or a second step that awaits. Or a step before this step
            has state or outputs, or returns several values.
    """
    waiting = [node for node in source.walk() if node.call is not None]
    if not waiting:
        return None
    before, node = list[Node](), source
    while node is not waiting[0]:
        if len(node.children) != 1:
            raise _misplaced("The stream has a branch before `apply_async`.")
        before.append(node)
        node = node.children[0]
        has_state = node.store is not None and node is not waiting[0]  # durable calls have a store of their own
        if has_state or node.outbox or node.window is not None or node.expand:
            raise _misplaced("A step before `apply_async` has state, sends to a topic, or gives several values.")
    if len(waiting) > 1:
        raise _misplaced("A stream has two steps that wait.")
    return before[1:], node


def _misplaced(sentence: str) -> AsyncInvalid:
    return AsyncInvalid(
        f"{sentence} Calls wait for many messages at once, and a message changes state and outputs as a whole.",
        action="Put `apply_async` first, behind filters and functions without state; or send its results to a topic, "
        "and read that topic for the rest.",
    )
