"""Saves stream time in the stores of user functions, and deletes expired values from these stores.

A task creates the objects of this module from the application's declared stores, before it compiles its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.processors.engine.changelog.codec_table import CODECS, DEFAULT
from holdfast.processors.engine.changelog.format import split_key
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.dated_values import DatedValues
from holdfast.processors.engine.state.time.declared_store import CodedState, DeclaredState
from holdfast.processors.engine.state.time.expiries import Expiries
from holdfast.processors.engine.state.time.key_times import KeyTimes
from holdfast.processors.engine.state.time.store_clock import NUMBERED, PLAIN, StoreClock
from holdfast.processors.engine.state.time.stream_time import Remembered, StreamTime
from holdfast.processors.engine.state.time.time_records import Look, is_own
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.steps.store_options import StoreOptions

if TYPE_CHECKING:
    from holdfast.processors.engine.state.typed import CodedModels, TypedValues

#: Maps each store to its object and its declaration. The declaration is None for a store that has only timers.
DeclaredStores = Mapping[str, tuple[DeclaredState, StoreOptions | None]]


class StoreTime:
    """Saves the stream time in one store of a task (declared by ``app.store``), and deletes the store's expired values.

    Args:
        state: The store.
        options: The store's declaration; None for a store that only has timers.
        stream: The stream time of the task.
        regrouped: Whether an input of the task is a repartition topic (``group_by``).
    """

    def __init__(
        self, state: DeclaredState, options: StoreOptions | None, stream: StreamTime, *, regrouped: bool = False
    ) -> None:
        self._state = state
        is_numbered = options is not None and options.dating is not None and options.dating.numbered
        self._clock = StoreClock(state, stream, NUMBERED if is_numbered else PLAIN)
        self._expiries = _ends_of(state, options, stream, regrouped=regrouped)

    @property
    def clock_key(self) -> bytes:
        """The changelog key of the record with the stream time."""
        return self._clock.key

    @property
    def late(self) -> int | None:
        """Number of late messages since the task started; None if stores of this kind have no late messages."""
        return self._expiries.late if isinstance(self._expiries, KeyTimes) else None

    def is_over(self, key: bytes, stored: bytes, look: Look) -> bool:
        """Whether a committed record contains a value that had expired at the last commit.

        Readers must not return this value.
        """
        ends, now_ms = self._expiries, self._clock.saved_ms
        if ends is None or isinstance(ends, KeyTimes) or is_own(key):
            return False
        message_key, name = split_key(key)
        if isinstance(ends, DatedValues):
            return ends.has_ended(name, stored, now_ms)
        return ends.has_ended(message_key, name, look, now_ms)

    def load(self) -> Remembered:
        """Reads the committed stream time, and event times in the future. Raises FormatUnknown."""
        self._look_again()
        return self._clock.load()

    def restore(self) -> Remembered:
        """Drops the uncommitted stream time, and returns the committed one.

        Must be called after an aborted transaction.
        """
        self._look_again()
        return self._clock.restore()

    def remove(self, limit: int) -> int:
        """Deletes expired values. Checks at most ``limit`` values, and returns how many values were checked."""
        if self._expiries is None:
            return 0
        removed = self._expiries.remove(limit)
        self._state.keep_message()
        return removed

    def save(self) -> bool:
        """Writes the stream time into the store. Returns False if it has not changed since the last commit."""
        return self._clock.save()

    def committed(self) -> None:
        """Marks the last ``save`` as committed. Must be called after the commit that contains it."""
        self._clock.committed()

    def _look_again(self) -> None:
        if self._expiries is not None:
            self._expiries.look_again()


def declared_stores(states: Mapping[str, StoreState], frames: Sequence[StreamingDataFrame]) -> DeclaredStores:
    """Returns the stores among ``states`` that have timers, models, expiring values, or another codec than JSON."""
    declared = frames[0].declared if frames else {}
    timed = {node.store for frame in frames for node in frame.source.walk() if node.processing is not None}
    found: dict[str, tuple[DeclaredState, StoreOptions | None]] = {}
    for name, plain in states.items():
        options = declared.get(name)
        if options is not None and options.codec != DEFAULT:
            found[name] = (CodedState(plain, _coded_models_of(options), CODECS[options.codec]), options)
        elif name in timed or (options is not None and (options.typed or options.expires)):
            found[name] = (DeclaredState(plain, _models_of(options)), options)
    return found


def _coded_models_of(options: StoreOptions) -> CodedModels | None:
    if not options.typed:
        return None
    # ``state.typed`` is imported here, so that pydantic is loaded only if a store has models.
    from holdfast.processors.engine.state.typed import CodedModels

    return CodedModels(options.name, options.models, options.upgrades_by_key, CODECS[options.codec])


def _models_of(options: StoreOptions | None) -> TypedValues | None:
    if options is None or not options.typed:
        return None
    # ``state.typed`` is imported here, so that pydantic is loaded only if a store has models.
    from holdfast.processors.engine.state.typed import TypedValues

    return TypedValues(options.name, options.models, options.upgrades_by_key)


def _ends_of(
    state: DeclaredState, options: StoreOptions | None, stream: StreamTime, *, regrouped: bool
) -> Expiries | DatedValues | KeyTimes | None:
    """Returns the object that deletes a store's expired values; None if its values never expire."""
    if options is None or not options.expires:
        return None
    if options.keeping is not None:
        return state.keep_by_key(KeyTimes(state, stream, options.keeping, regrouped=regrouped))
    if options.dating is not None:
        return state.keep_dated(DatedValues(state, stream, options.dating, by_stream=regrouped))
    made = Expiries(state, options.ttl_ms, stream, by_stream=regrouped and options.asked_by_older)
    return state.let_expire(made, _read_ttl)


def _read_ttl(ttl: int | timedelta) -> int:
    return milliseconds("ttl", ttl, least=1)
