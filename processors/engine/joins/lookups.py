"""The steps of ``sdf.join_lookup``: an async user function reads rows from an external system, and a cache keeps them.

    value ──► value, key of its row ──► cache, or a call ──► value, row ──► merged

The cache is in the worker's memory, not in the state. It starts empty, so calls are repeated after a restart. All tasks
of a worker share the cache.

Invariants:
    - Three answers are different: no row exists, the row is None, and the row is another falsy value such as 0. The
      cache stores all of them.
    - A row in the cache never changes, because steps get copies.
    - A call that fails is not cached.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.formats.typed import field_of, fields_of, is_object
from holdfast.processors.engine.joins.merge import (
    JoinInvalid,
    MergeFailed,
    OnMerge,
    check_how,
    check_merge,
    merge_function,
    name_of,
)
from holdfast.processors.engine.steps.async_calls import awaited
from holdfast.processors.engine.steps.checked_arguments import check_function
from holdfast.processors.engine.steps.step import Step

#: The user's async function, which returns the row of a key.
Lookup = Callable[[Any], Awaitable[Any]]
#: The source of the row's key: a field of the value, a function of (value, key), or None for the message's key.
LookupOn = str | Callable[[Any, Any], Any] | None
#: The fields that the row adds to the value. A mapping gives for each new field the name of the row's field, or a
#: function of the row. A list names fields that are copied from the row under the same names.
LookupFields = Mapping[str, str | Callable[[Any], Any]] | Sequence[str] | None


class NotFound(LookupError):
    """A user's lookup function raises this error for a key that has no row."""


class LookupKeyInvalid(HoldfastError):
    """A message has no value that ``join_lookup`` can use as the key of a row."""


class Asked(NamedTuple):
    """A value whose row is needed.

    ``on`` is the row's key; None if the value has no row. ``place`` is the key of the answer in the cache.
    """

    value: Any
    on: Any
    place: Any


class Found(NamedTuple):
    """A value and its row. ``is_found`` is False if there is no row."""

    value: Any
    is_found: bool
    row: Any


class _Answer(NamedTuple):
    is_found: bool
    row: Any
    ends: float


class _Flight:
    """A running call of the user's function. Several messages with the same row key may wait for its result."""

    def __init__(self, task: asyncio.Task[_Answer]) -> None:
        self.task, self.waiting = task, 0


class CachedLookup:
    """Returns rows from its cache, or calls the user's function once for all values that need the same key.

    ``ttl_s`` is the time for which an answer is cached, in seconds; 0 disables the cache. ``size`` is the maximum
    number of cached answers. The least recently used answer is evicted first.
    """

    def __init__(
        self, lookup: Lookup, ttl_s: float, size: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        # because of ``__wrapped__``, the source of the user's function is a part of the processor's code version
        self.__wrapped__ = lookup
        self.__qualname__ = getattr(lookup, "__qualname__", type(lookup).__name__)
        self._lookup, self._ttl_s, self._size, self._monotonic = lookup, ttl_s, size, monotonic
        self._kept: OrderedDict[Any, _Answer] = OrderedDict()
        #: Maps each event loop to its running calls, by row key.
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, _Flight]] = WeakKeyDictionary()
        # a lock is needed, because workers on several threads of a program may share this object
        self._lock = threading.Lock()
        self.hits = self.misses = 0

    @property
    def entries(self) -> int:
        """The number of cached answers."""
        return len(self._kept)

    def known(self, asked: Asked) -> tuple[Found] | None:
        """Returns the answer if it is in the cache or the value has no row key.

        Otherwise, returns None: a call is needed.
        """
        if asked.on is None:
            return (Found(asked.value, False, None),)
        answer = self._take(asked.place)
        return None if answer is None else (_found(asked.value, answer),)

    async def __call__(self, asked: Asked) -> Found:
        """Returns the row from the cache.

        Without a cached row, calls the user's function, or waits for a running call with the same row key.
        """
        answer = self._take(asked.place)
        if answer is not None:
            return _found(asked.value, answer)
        flight = self._flight(asked)
        flight.waiting += 1
        try:
            await asyncio.wait({flight.task})
        except asyncio.CancelledError:  # This waiter timed out. The call is cancelled only if no other waiter needs it.
            if flight.waiting == 1:
                flight.task.cancel()
                self._land(asked.place, flight)
            raise
        finally:
            flight.waiting -= 1
        return _found(asked.value, flight.task.result())

    def _flight(self, asked: Asked) -> _Flight:
        flying = self._flights.setdefault(asyncio.get_running_loop(), {})
        flight = flying.get(asked.place)
        if flight is not None:
            self.hits += 1
            return flight
        self.misses += 1
        made = flying[asked.place] = _Flight(asyncio.ensure_future(self._ask(asked)))
        made.task.add_done_callback(lambda _: self._land(asked.place, made))
        return made

    def _land(self, place: Any, flight: _Flight) -> None:
        flying = self._flights[flight.task.get_loop()]
        if flying.get(place) is flight:
            del flying[place]

    async def _ask(self, asked: Asked) -> _Answer:
        try:
            row, is_found = await awaited(self._lookup, asked.on), True
        except NotFound:
            row, is_found = None, False
        answer = _Answer(is_found, copy.deepcopy(row), self._monotonic() + self._ttl_s)
        if self._ttl_s > 0:
            with self._lock:
                self._kept[asked.place] = answer
                self._kept.move_to_end(asked.place)
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
        return answer

    def _take(self, place: Any) -> _Answer | None:
        with self._lock:
            answer = self._kept.get(place)
            if answer is None:
                return None
            if self._monotonic() >= answer.ends:
                del self._kept[place]
                return None
            self._kept.move_to_end(place)
            self.hits += 1
            return answer


def _found(value: Any, answer: _Answer) -> Found:
    return Found(value, answer.is_found, copy.deepcopy(answer.row))


def _place(on: Any) -> Any:
    """Converts a row key to a key of the cache, in which 1, 1.0 and true are three different keys."""
    if isinstance(on, tuple):
        return (tuple, *map(_place, on))
    if isinstance(on, (str, bytes, int, float)) or on is None:
        return (type(on), on)
    raise LookupKeyInvalid(
        f"`join_lookup` got a key of type {type(on).__name__}, expected a text, bytes, a number, or a tuple of these.",
        action="Write `on=` as a function of (value, key) that returns such a key.",
        seen=repr(on)[:80],
    )


class LookupKey(Step):
    """Adds to each value the key of its row."""

    __name__ = "join_lookup"
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, on: LookupOn) -> None:
        self._on = on
        self.functions = (on,) if callable(on) else ()

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        on = self._on
        return f"lookup by {'function' if callable(on) else 'key' if on is None else f'field {on}'}"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> Asked:
        """Returns the value together with its row's key."""
        on = self._on
        if on is None:
            found = key
        elif callable(on):
            found = on(value, key)
        elif is_object(value):
            found = field_of(value, on)
        else:
            raise self._no_field(on, value)
        return Asked(value, found, _place(found))

    def _no_field(self, on: str, value: Any) -> LookupKeyInvalid:
        return LookupKeyInvalid(
            f"`join_lookup` takes the field {on!r} of a value of type {type(value).__name__}, expected an object.",
            action="Write `on=` as a function of (value, key).",
            seen=repr(value)[:80],
        )


class LookupMerge(Step):
    """Merges a value and its row into one value, by ``fields`` or ``on_merge``."""

    __name__ = "join_lookup"
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, fields: LookupFields, how: str, on_merge: OnMerge, default: Any) -> None:
        check_how(how, ("left", "inner"))
        check_merge(on_merge)
        self._fields, self._inner, self._default = _checked_fields(fields), how == "inner", default
        if self._fields is not None and on_merge != "raise":
            raise JoinInvalid(
                "`join_lookup` got `fields` and `on_merge`; expected one of them.",
                action="Leave `on_merge` out, or make the whole value in a function of (value, row) and leave `fields` "
                "out.",
            )
        if default is not None and self._inner:
            raise JoinInvalid(
                f"`join_lookup` got `default={default!r}` and `how='inner'`, which drops values without a row.",
                action="Leave one of them out.",
                seen=repr(default)[:80],
            )
        self._merge = merge_function(on_merge)
        made = {} if self._fields is None else self._fields
        named = sorted(f"{name}={of if isinstance(of, str) else 'function'}" for name, of in made.items())
        self._rule = f"lookup, {how}, {', '.join(named) or name_of(on_merge)}, default {default!r}"
        own = (on_merge,) if callable(on_merge) else ()
        self.functions = (*own, *(of for of in made.values() if not isinstance(of, str)))

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return self._rule

    def __call__(self, found: Found) -> list[Any]:
        """Returns the merged value in a list. An empty list drops the message."""
        if not found.is_found and self._inner:
            return []
        row = found.row if found.is_found else copy.deepcopy(self._default)
        if self._fields is None:
            return [self._merge(found.value, row)]
        if (fields := fields_of(found.value)) is None:
            raise _no_object("value", found.value)
        return [{**fields, **{name: _taken(row, of, found.is_found) for name, of in self._fields.items()}}]


def _taken(row: Any, of: str | Callable[[Any], Any], is_found: bool) -> Any:
    if not isinstance(of, str) and (is_found or row is not None):
        return of(row)
    if row is None:
        return None
    if isinstance(of, str) and is_object(row):
        return field_of(row, of)
    raise _no_object("row", row)


def _no_object(what: str, seen: Any) -> MergeFailed:
    return MergeFailed(
        f"The {what} of a `join_lookup` is of type {type(seen).__name__}, expected an object with fields.",
        action="Write `on_merge=` as a function of (value, row), and leave `fields` out."
        if what == "value"
        else "Take the field by a function of the row: `fields={'name': lambda row: row}`.",
        seen=repr(seen)[:80],
    )


def _checked_fields(fields: Any) -> Mapping[str, str | Callable[[Any], Any]] | None:
    if fields is None:
        return None
    if isinstance(fields, (list, tuple)):
        fields = {name: name for name in fields}
    fine = isinstance(fields, Mapping) and bool(fields)
    if not fine or not all(
        isinstance(name, str) and (isinstance(of, str) or callable(of)) for name, of in fields.items()
    ):
        raise JoinInvalid(
            f"`fields` is {fields!r}, expected names of fields, or a mapping of new fields to fields of the row.",
            action='Write, for example, `fields={"owner": "name"}`, or `fields=["name", "city"]`.',
            seen=repr(fields)[:80],
        )
    for name, of in fields.items():
        if not isinstance(of, str):
            check_function(of, f"`fields[{name!r}]` of `join_lookup`", ("row",))
    return dict(fields)
