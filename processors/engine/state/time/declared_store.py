"""The class of stores in which values have models, values expire, or keys have timers.

Stores without these features use the faster class ``StoreState``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.processors.engine.changelog.codecs import Codec
from holdfast.processors.engine.changelog.format import (
    CODEC_JSON,
    VALUE_VERSION,
    decode_value,
    encode_bytes,
    encode_json,
    encode_value,
    event_time_ms,
    key_prefix,
    pack_head,
    split_key,
)
from holdfast.processors.engine.changelog.stored_values import encode_coded
from holdfast.processors.engine.record_size import too_large
from holdfast.processors.engine.state.methods import Ttl
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.dated_values import DatedValues
from holdfast.processors.engine.state.time.expiries import Expiries
from holdfast.processors.engine.state.time.key_times import KeyTimes
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

if TYPE_CHECKING:
    from holdfast.processors.engine.state.typed import CodedModels, TypedValues

_OWN = key_prefix(OWN_KEY)


class DeclaredState(StoreState):
    """One store of one task whose values have models or expire, or whose keys have timers.

    Args:
        plain: The store that this object replaces.
        typed: The models of its values; None for plain JSON.
    """

    __slots__ = ("_expiries", "_read_ttl", "_typed", "dated", "key_times")

    #: The values whose state keys end with a time. The attribute exists only after a call of ``keep_dated``.
    dated: DatedValues
    #: Decides by the event times of each key when its values expire. The attribute exists only after ``keep_by_key``.
    key_times: KeyTimes

    def __init__(self, plain: StoreState, typed: TypedValues | None) -> None:
        super().__init__(
            plain.name, plain._backend, plain._topic, plain.record_bytes_max, cache_bytes=plain.cache_bytes
        )
        self._typed = typed
        self._expiries: Expiries | None = None
        self._read_ttl: Callable[[int | timedelta], int] | None = None

    def let_expire(self, expiries: Expiries, read_ttl: Callable[[int | timedelta], int]) -> Expiries:
        """Sets the object that stores expiry times. Must be called if values of the store expire by a TTL.

        ``read_ttl`` converts and checks the argument ``ttl`` of ``set``.
        """
        self._expiries, self._read_ttl = expiries, read_ttl
        return expiries

    def keep_dated(self, dated: DatedValues) -> DatedValues:
        """Sets the object for values whose state keys end with a time. Must be called for the store of a join."""
        self.dated = dated
        return dated

    def keep_by_key(self, times: KeyTimes) -> KeyTimes:
        """Sets the object that stores the event times of keys.

        Must be called if values of the store expire by the event times of their own message keys.
        """
        self.key_times = times
        return times

    # -- methods for user functions -------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a copy of the value of ``key``; if there is no value, a copy of ``default``."""
        raw = self._load(key)
        return copy.deepcopy(default) if raw is None else self._decoded(key, raw)

    def delete(self, key: str) -> None:
        """Deletes ``key``; does nothing if the key has no value.

        A value that has expired but is still stored is deleted, too. Otherwise, a timer with an earlier time could
        still read it.
        """
        if self.read_plain(key) is not None:
            self._store(key, None)

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key``. If the key has a model, the value is validated first."""
        if self._typed is not None and self._typed.has(key):
            value = self._typed.written(key, value)
        self._put(key, encode_value(value, self.timestamp_ms, where=f" for key {key!r} of store {self.name!r}"), ttl)

    def set_bytes(self, key: str, value: bytes, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key`` to raw bytes; raises an error if the key has a model."""
        if self._typed is not None and self._typed.has(key):
            raise self._unfit(key, "was set to raw bytes", "a value of its model", "Use `state.set`.")
        self._put(key, encode_bytes(value, self.timestamp_ms), ttl)

    def _put(self, key: str, raw: bytes, ttl: Ttl) -> None:
        if ttl is not None and self._read_ttl is None:
            raise self.without_ttl()
        ttl_ms = None if ttl is None or self._read_ttl is None else self._read_ttl(ttl)
        super()._store(key, raw)
        if self._expiries is not None and not self._expiries.put(key, ttl_ms):
            self._store(key, None)

    def _load(self, key: str) -> bytes | None:
        raw = super()._load(key)
        return None if raw is not None and self._expiries is not None and self._expiries.are_over(key) else raw

    def _store(self, key: str, raw: bytes | None) -> None:
        super()._store(key, raw)
        if self._expiries is not None and raw is None:
            self._expiries.forget(key)

    def _is_shown(self, key: bytes) -> bool:
        if not super()._is_shown(key):
            return False
        return self._expiries is None or not self._expiries.are_over(key.decode())

    def _decoded(self, key: str, raw: bytes) -> Any:
        typed = self._typed
        return typed.read(key, raw) if typed is not None and typed.has(key) else decode_value(raw)

    # -- internal records -----------------------------------------------------------------------------------------

    def read_own(self, message_key: bytes, state_key: str) -> Any:
        """Returns the value of an internal record of a message key; None if it does not exist."""
        cell, place = self._shared, key_prefix(message_key) + state_key.encode()
        if place in cell.dirty:
            raw = cell.dirty[place]
        else:
            raw = cell.young[place] if place in cell.young else self._read(cell, place)
        return None if raw is None else decode_value(raw)

    def write_own(self, message_key: bytes, state_key: str, value: Any) -> None:
        """Sets the value of an internal record; None deletes the record."""
        raw = None
        # The value has only whole numbers and texts, so it needs no check whether JSON preserves it.
        if value is not None:
            raw = pack_head(VALUE_VERSION, CODEC_JSON, max(self.timestamp_ms, 0)) + encode_json(value)
        self._write(self._shared, key_prefix(message_key) + state_key.encode(), state_key, raw)

    def add_entry(self, state_key: bytes) -> None:
        """Adds an entry to an index by time. All index entries have the message key ``OWN_KEY``."""
        cell, place = self._shared, _OWN + state_key
        raw = pack_head(VALUE_VERSION, CODEC_JSON, max(self.timestamp_ms, 0)) + b"1"
        if len(raw) + len(place) > cell.room:
            raise self._too_large(state_key.decode(), cell, place, raw)
        self._write(cell, place, "", raw)

    def delete_entry(self, state_key: bytes) -> bool:
        """Deletes an index entry. Returns False if it does not exist."""
        cell, place = self._shared, _OWN + state_key
        if place in cell.dirty:
            raw = cell.dirty[place]
        else:
            raw = cell.young[place] if place in cell.young else self._read(cell, place)
        if raw is None:
            return False
        self._write(cell, place, "", None)
        return True

    def overwritten_ms(self, state_key: str) -> int | None:
        """Returns the event time of the value that the last write replaced; None if it replaced nothing.

        ``state_key`` must be the state key of that write.
        """
        dirty, place, before = self._undo[-1]
        if isinstance(before, bytes) or before is None:
            raw = before
        else:  # The replaced value was committed, so it is in the cache or in the database.
            cell = self._cells.get(state_key) or self._place(state_key)[0]
            assert cell.dirty is dirty
            raw = cell.young[place] if place in cell.young else self._read(cell, place)
        return None if raw is None else event_time_ms(raw)

    def erase(self, message_key: bytes, state_key: str) -> None:
        """Deletes a value that a user function has set. Holdfast's internal records about the value are not deleted."""
        self.write_value(message_key, state_key, None)

    # -- values with a time in their state keys --------------------------------------------------------------------

    def read_value(self, message_key: bytes, state_key: str) -> bytes | None:
        """Returns the stored value of a message key and a state key; None without a value."""
        former, self.message_key = self.message_key, message_key
        raw = super()._load(state_key)
        self.message_key = former
        return raw

    def write_value(self, message_key: bytes, state_key: str, raw: bytes | None) -> None:
        """Sets the stored value of a message key and a state key; None deletes it."""
        former, self.message_key = self.message_key, message_key
        super()._store(state_key, raw)
        self.message_key = former

    def neighbour(self, prefix: str, bound: str, *, before: bool) -> tuple[str, bytes] | None:
        """Returns the state key with this prefix that is nearest to ``bound``, and its value; None without such a key.

        If ``before`` is True, this is the last key before ``bound``; otherwise, the first key at or after ``bound``.
        """
        start, end = (None, bound) if before else (bound, None)
        found = self._range(prefix, start, end, before, 1)
        return found[0] if found else None

    def check_room(self, state_key: str, size: int) -> None:
        """Raises RecordTooLarge if a record with this state key would exceed the changelog's maximum size.

        ``size`` is the bytes of the record without the message key.
        """
        size += len(self.message_key)
        if size > self.record_bytes_max:
            what = f"The value of key {state_key!r} in store {self.name!r}"
            raise too_large(what, self._topic, size, self.record_bytes_max)

    def read_place(self, place: bytes) -> bytes | None:
        """Returns the stored value of a changelog key; None if there is no value.

        The state key's prefix must be in ``scattered``: such a state key occurs with one message key only.
        """
        cell = self._shared
        self.reads += 1
        if place in cell.dirty:
            return cell.dirty[place]
        return cell.young[place] if place in cell.young else self._read(cell, place)

    def write_place(self, place: bytes, raw: bytes | None) -> None:
        """Sets the stored value of a changelog key; None deletes it.

        The state key's prefix must be in ``scattered``: such a state key occurs with one message key only.
        """
        cell = self._shared
        if raw is not None and len(raw) + len(place) > cell.room:
            raise self._too_large(split_key(place)[1], cell, place, raw)
        self._write(cell, place, "", raw)

    #: ``read_plain`` reads the stored bytes of a state key (None: no value), ``write_plain`` writes them. Neither
    #: checks whether the value has expired.
    read_plain, write_plain = StoreState._load, StoreState._store

    def undo_message(self, mark: int = 0) -> None:
        """Reverts the writes of a failed message, except those of the first ``mark`` entries of the undo log."""
        super().undo_message(mark)
        if hasattr(self, "dated"):
            self.dated.forget(self.message_key)

    def drop(self) -> None:
        """Drops all uncommitted writes."""
        super().drop()
        if hasattr(self, "dated"):
            self.dated.forget_all()


class CodedState(DeclaredState):
    """One store of one task whose values are written with another codec (value format) than JSON.

    The codec of a stored value is recorded with the value, so values that an earlier codec wrote stay readable.

    Args:
        plain: The store that this object replaces.
        typed: The models of its values; None without models.
        codec: The codec of the values that functions set.
    """

    __slots__ = ("_codec", "_models")

    def __init__(self, plain: StoreState, typed: CodedModels | None, codec: Codec) -> None:
        super().__init__(plain, typed)
        self._codec, self._models = codec, typed

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key``; raises ValueNotStorable if the codec would change the value."""
        models = self._models
        if models is not None and models.has(key):
            raw = pack_head(VALUE_VERSION, self._codec.number, self.timestamp_ms) + models.payload(key, value)
        else:
            where = f" for key {key!r} of store {self.name!r}"
            raw = encode_coded(self._codec, value, self.timestamp_ms, where=where)
        self._put(key, raw, ttl)
