"""Operations on the state of a message key beyond single reads and writes: counters, lists, ranges, raw bytes.

All operations call the reads and writes of ``StoreState``. Its undo log, overlay (uncommitted writes in memory) and
size limits therefore also apply to these operations.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException, Inexact, InvalidOperation, Overflow
from itertools import islice
from typing import Any, cast

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import (
    CODEC_JSON,
    VALUE_VERSION,
    decode_value,
    encode_bytes,
    encode_json,
    encode_value,
    pack_head,
)
from holdfast.processors.engine.state.own_keys import RESERVED_BYTES
from holdfast.processors.engine.state.ranges import Ranged, behind, state_keys

#: Maximum digits of a sum of Decimals. The sum is exact, because it does not use the decimal context of the process.
DIGITS_MAX = 10_000
_EXACT = Context(prec=DIGITS_MAX, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation, Overflow])

#: The time for which a value stays readable, in milliseconds or as a timedelta; None means the store's default.
Ttl = int | timedelta | None


class StateValueInvalid(HoldfastError):
    """A value, stored or to be stored, does not have the type that the operation or the store's model expects."""


class StateMethods:
    """The methods of ``StoreState`` that are built on its ``get``, ``set`` and ``delete``."""

    __slots__ = ()

    name: str
    message_key: bytes
    timestamp_ms: int

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a copy of the value of ``key``; if there is no value, a copy of ``default``."""
        raise NotImplementedError

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key``."""
        raise NotImplementedError

    def _load(self, key: str) -> bytes | None:
        """Returns the stored bytes of a state key; None without a value."""
        raise NotImplementedError

    def _store(self, key: str, raw: bytes | None) -> None:
        """Stores the bytes of a state key; None deletes the key."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        """Deletes ``key``; does nothing if the key has no value."""
        if self._load(key) is not None:
            self._store(key, None)

    def exists(self, key: str) -> bool:
        """Whether ``key`` has a value."""
        return self._load(key) is not None

    def set_bytes(self, key: str, value: bytes, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key`` to raw bytes."""
        if ttl is not None:
            raise self.without_ttl()
        self._store(key, encode_bytes(value, self.timestamp_ms))

    def set_own(self, key: str, value: Any) -> None:
        """Sets a value that Holdfast has built. Unlike ``set``, does not check whether JSON preserves the value."""
        try:
            raw = pack_head(VALUE_VERSION, CODEC_JSON, self.timestamp_ms) + encode_json(value)
        except (TypeError, ValueError, OverflowError):
            raw = encode_value(value, self.timestamp_ms, where=f" for key {key!r} of store {self.name!r}")
        self._store(key, raw)

    def increment(self, key: str, by: float | Decimal = 1) -> Any:
        """Adds ``by`` to the number stored under ``key`` and returns the total. A missing number counts as 0.

        A Decimal needs a store with the codec ``typed``. A Decimal can be added to whole numbers and Decimals, but not
        to floats.
        """
        held = self.get(key, 0)
        for number, what in ((held, f"holds {_shown(held)}"), (by, f"is to be incremented by {_shown(by)}")):
            if isinstance(number, bool) or not isinstance(number, (int, float, Decimal)):
                raise self._unfit(key, what, "a number", "Set it to a number first, or use another key.")
        try:
            if isinstance(held, Decimal) or isinstance(by, Decimal):
                total: Any = _sum_of_decimals(held, by)
            else:
                total = held + by
        except DecimalException as failure:
            seen = f"holds {_shown(held)}, to be incremented by {_shown(by)}"
            expected = f"a sum of at most {DIGITS_MAX:,} digits"
            raise self._unfit(key, seen, expected, "Round the numbers first.") from failure
        except TypeError as failure:
            seen = f"holds {_shown(held)}, to be incremented by {_shown(by)}"
            raise self._unfit(
                key, seen, "a Decimal or a whole number for a Decimal", "Convert one of them."
            ) from failure
        except OverflowError as failure:
            seen = f"holds {_shown(held)}, to be incremented by {_shown(by)}: no float can hold one of them"
            fitting = "a whole number" if isinstance(held, int) else "a number of at most 1.8e308"
            raise self._unfit(key, seen, "numbers that add up", f"Increment it by {fitting}.") from failure
        self.set(key, total)
        return total

    def append(self, key: str, item: Any, keep_last: int | None = None) -> list[Any]:
        """Appends ``item`` to the list stored under ``key`` and returns the list; at most ``keep_last`` items stay."""
        if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
            raise ValueError(f"`keep_last` is {keep_last!r}, expected a whole number from 1, or None to keep all items")
        held = self.get(key)
        if held is not None and not isinstance(held, list):
            raise self._unfit(key, f"holds {_shown(held)}", "a list", "Set it to a list first, or use another key.")
        made = [*(held or ()), item]
        if keep_last is not None:
            del made[:-keep_last]
        self.set(key, made)
        return made

    def pop(self, key: str, default: Any = None) -> Any:
        """Deletes ``key`` and returns its value; if there is no value, ``default``."""
        found = self.get(key, default)
        self.delete(key)
        return found

    def items(
        self,
        prefix: str = "",
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[tuple[str, Any]]:
        """Returns state keys of the current message key with their values, in key order."""
        return [(key, self._decoded(key, raw)) for key, raw in self._range(prefix, start, end, reverse, limit)]

    def keys(
        self,
        prefix: str = "",
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[str]:
        """Returns the same state keys as ``items``, without their values."""
        return [key for key, _ in self._range(prefix, start, end, reverse, limit)]

    def entry(self, key: bytes, raw: bytes) -> tuple[str, Any] | None:
        """Converts stored bytes of the current message key to the pair (state key, value), as ``items`` returns it.

        Returns None for an internal record of Holdfast, which ``items`` leaves out.
        """
        return (name := key.decode(), self._decoded(name, raw)) if self._is_shown(key) else None

    def get_bytes(self, key: str, default: bytes | None = None) -> bytes | None:
        """Returns the bytes that ``set_bytes`` stored; if there is no value, ``default``."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"key {key!r} of store {self.name!r} holds a JSON value, expected bytes: use state.get()")
        return value

    def without_ttl(self) -> StateValueInvalid:
        """Returns the error for a value that was set with ``ttl`` in a store that does not declare a TTL."""
        return StateValueInvalid(
            f"A value of store {self.name!r} was set with `ttl`, and the store is not declared for it.",
            action=f'Declare the store: `app.store({self.name!r}, ttl="by value")`.',
            store=self.name,
        )

    def _range(
        self, prefix: str, start: str | None, end: str | None, reverse: bool, limit: int | None
    ) -> list[tuple[str, bytes]]:
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ValueError(f"`limit` is {limit!r}, expected a whole number from 0, or None for all keys")
        for name, bound in (("prefix", prefix), ("start", start or ""), ("end", end or "")):
            if not isinstance(bound, str):
                raise TypeError(f"`{name}` is {bound!r} of type {type(bound).__name__}, expected a text")
        first = max(prefix.encode(), b"" if start is None else start.encode())
        ends = [bound for bound in (behind(prefix.encode()), b"" if end is None else end.encode()) if bound]
        if end == "" or (ends and first >= min(ends)):
            return []
        found = state_keys(cast(Ranged, self), self.message_key, first, min(ends, default=None), reverse=reverse)
        with closing(found):
            shown = ((key.decode(), raw) for key, raw in found if self._is_shown(key))
            return list(islice(shown, limit))

    def _is_shown(self, key: bytes) -> bool:
        """Whether ``items`` and ``keys`` return this state key. They leave out Holdfast's internal state keys."""
        return not key.startswith(RESERVED_BYTES)

    def _decoded(self, key: str, raw: bytes) -> Any:
        """Decodes the stored bytes of a state key to its value."""
        return decode_value(raw)

    def _unfit(self, key: str, seen: str, expected: str, action: str) -> StateValueInvalid:
        return StateValueInvalid(
            f"Key {key!r} of store {self.name!r} {seen}, expected {expected}.",
            action=action,
            store=self.name,
            key=key,
        )


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {repr(value)[:80]}"


def _sum_of_decimals(held: float | Decimal, by: float | Decimal) -> Decimal:
    """Returns the exact sum. Raises TypeError for a float, and DecimalException if the sum has too many digits."""
    if isinstance(held, float) or isinstance(by, float):
        raise TypeError("a Decimal and a float have no exact sum")
    return _EXACT.add(_EXACT.create_decimal(held), _EXACT.create_decimal(by))
