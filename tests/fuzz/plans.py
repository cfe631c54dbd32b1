"""Describes as data what a fuzzed message does: operations on state, then an output. ``Model`` predicts the result.

``Model`` is plain Python and shares no code with the engine. It knows the rules of `docs/failures.md`: what state
returns, what each serializer accepts, and which errors a message may fail with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

#: ``BYTES_MAX`` is the size of the largest record that the output topic and the changelog accept. A value of ``LONG``
#: characters is larger.
BYTES_MAX, LONG = 4_000, 5_000
#: Event times in milliseconds since 1970. One is later than the time of any test run, one is too large for any calendar
#: date.
FAR_AHEAD_MS, BEYOND_MS = 2_000_000_000_000, 2**62


class Odd(Exception):
    """An error that a user's function raises. The conversion of this error to text fails, too."""

    def __str__(self) -> str:
        raise RuntimeError("an error without a text")


@dataclass(frozen=True, slots=True)
class Op:
    """One call that a user's function makes. With ``caught``, the function catches the call's error and continues."""

    kind: str
    name: Any = ""
    value: Any = None
    caught: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One input message: either ``raw`` bytes, or ``ops``, the calls that the user's function makes for the message."""

    key: bytes | None
    time_ms: int
    headers: tuple[tuple[str, bytes | None], ...]
    raw: bytes | None = None
    ops: tuple[Op, ...] | None = None
    returns: Any = None
    out_key: Any = None
    out_headers: Any = None


class Refused(Exception):
    """Raised by the model if it expects the message to fail."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.names = set(names)


_ODD_VALUES: tuple[Any, ...] = (
    b"",
    b"raw",
    "\ud800",
    "x" * LONG,
    {1, "a"},
    frozenset(),
    Decimal(1),
    object,
    2**64 - 1,
    -(2**63),
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        (b"", b"raw", "\ud800", "x" * LONG, {1, "a"}, frozenset(), Decimal(1), object, 2**64 - 1, -(2**63))
    ),
)
_NAMES: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, 5).map("n{}".format), st.sampled_from(("", "ü", "\ud800", "\x00", 7, None, b"b", (), []))
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(-9, 9)), inner, max_size=3),
    ),
    max_leaves=6,
)
_RAISED = (Odd, SystemExit, GeneratorExit, KeyError, RecursionError, MemoryError, StopIteration)
_OPS = st.one_of(
    st.builds(Op, st.just("set"), _NAMES, VALUES, st.booleans()),
    st.builds(Op, st.just("set_bytes"), _NAMES, st.one_of(st.binary(max_size=6), VALUES), st.booleans()),
    st.builds(Op, st.sampled_from(("get", "get_bytes", "exists", "delete")), _NAMES, st.none(), st.booleans()),
    st.builds(Op, st.just("raise"), st.just(""), st.sampled_from(_RAISED), st.booleans()),
)
_HEADERS = st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=4))), max_size=2).map(tuple)
_TIMES = st.sampled_from((0, 0, 0, 1, -1, 1_000_000_000_000, FAR_AHEAD_MS, BEYOND_MS))
_KEYS = st.sampled_from((b"a", b"b", b"c", b"", b"\x00\xff", None))
MESSAGES = st.one_of(
    st.builds(
        Message,
        _KEYS,
        _TIMES,
        _HEADERS,
        ops=st.lists(_OPS, max_size=5).map(tuple),
        returns=VALUES,
        out_key=st.one_of(st.none(), st.binary(max_size=3), st.just("text"), st.just(7)),
        out_headers=st.one_of(
            st.none(),
            st.just({"made": "ü", "none": None}),
            st.just([("raw", b"\xff")]),
            st.sampled_from(([("bad", 7)], {"\ud800": b""}, 5, [()], {7: b""})),
        ),
    ),
    st.builds(Message, _KEYS, _TIMES, _HEADERS, raw=st.one_of(st.none(), st.binary(max_size=12))),
)


def perform(op: Op, state: Any) -> Any:
    """Make one call, as a user's function does. Returns the result of the call."""
    if op.kind == "raise":
        raise op.value
    if op.kind in ("set", "set_bytes"):
        return getattr(state, op.kind)(op.name, op.value)
    return getattr(state, op.kind)(op.name)


# -- serializers of every kind -----------------------------------------------------------------------------------------


def _as_bytearray(value: Any) -> bytearray:
    return bytearray(repr(type(value)).encode())


def _as_view(value: Any) -> memoryview:
    return memoryview(repr(type(value)).encode())


def _as_text(value: Any) -> str:
    return "\ud800" if isinstance(value, str) else type(value).__name__


def _as_itself(value: Any) -> Any:
    return value


def _as_nothing(value: Any) -> None:
    return None


def _raises(value: Any) -> bytes:
    raise LookupError(value)


#: Serializers of the output topic: a built-in name, or a function of the user.
SERIALIZERS: Mapping[str, str | Callable[[Any], Any]] = {
    "json": "json",
    "str": "str",
    "bytes": "bytes",
    "bytearray": _as_bytearray,
    "view": _as_view,
    "text": _as_text,
    "itself": _as_itself,
    "nothing": _as_nothing,
    "raises": _raises,
}


def _written(kind: str, value: Any) -> Any:
    """Return the serialized form of a value: bytes, or a JSON value to compare with.

    Raises:
        Refused: The serializer does not accept the value.
    """
    if value is None:
        return None
    if kind == "json":
        return json_of(value)
    if kind == "raises":
        raise Refused("LookupError")
    if kind in ("bytearray", "view"):
        return repr(type(value)).encode()
    if kind == "str" and not isinstance(value, str):
        raise Refused("ValueUnwritable")
    made = _as_text(value) if kind == "text" else None if kind == "nothing" else value
    if isinstance(made, bytes) and kind != "str":
        return made
    if isinstance(made, str) and kind != "bytes":
        return _encoded(made, "ValueUnwritable")
    raise Refused("ValueUnwritable")


def _encoded(text: str, error: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Refused(error) from None


def json_of(value: Any) -> Any:
    """The value that a reader of the JSON output gets.

    Raises:
        Refused: JSON cannot hold the value.
    """
    if isinstance(value, dict):
        return {str(key): json_of(part) for key, part in value.items() if _encoded(str(key), "ValueUnwritable") or True}
    if isinstance(value, (list, tuple)):
        return [json_of(part) for part in value]
    if isinstance(value, Decimal):
        return str(value)
    return _scalar(value, "ValueUnwritable")


def state_of(value: Any) -> Any:
    """The value that state returns after this value was set.

    Raises:
        Refused: State cannot store the value.
    """
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise Refused("ValueNotStorable")
        return {key: state_of(part) for key, part in value.items() if _encoded(key, "ValueNotStorable") or True}
    if isinstance(value, (list, tuple)):
        return [state_of(part) for part in value]
    return _scalar(value, "ValueNotStorable")


def _scalar(value: Any, error: str) -> Any:
    if isinstance(value, str):
        _encoded(value, error)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(error)
    elif not isinstance(value, (int, type(None))):
        raise Refused(error)
    return value


# -- the model ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """One expected output; ``value`` is bytes, None, or a JSON value."""

    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class Done:
    """The expected result of one message.

    ``sent`` is its output; None if it fails. ``errors`` are the error types that it may fail with. ``reads`` are the
    values that its function reads. ``state`` is the state of all keys afterwards.
    """

    sent: Sent | None = None
    errors: frozenset[str] = frozenset()
    reads: tuple[str, ...] = ()
    state: dict[tuple[bytes, str], Any] = field(default_factory=dict)


class Model:
    """Predicts the result of messages in plain Python.

    ``takes_past`` and ``takes_future`` tell whether the output topic accepts timestamps of the distant past and of the
    distant future.
    """

    def __init__(self, serializer: str, *, takes_past: bool, takes_future: bool) -> None:
        self._serializer = serializer
        self._takes_past, self._takes_future = takes_past, takes_future
        self._state: dict[bytes, dict[str, Any]] = {}

    def fold(self, messages: Sequence[Message]) -> list[Done]:
        """The expected result of each message, in order.

        ``state`` of a result is the state of all keys after its message.
        """
        done = []
        for message in messages:
            came = self._one(message)
            came.state = {(key, name): value for key, of in self._state.items() for name, value in of.items()}
            done.append(came)
        return done

    def _one(self, message: Message) -> Done:
        if message.ops is None:
            return Done(errors=frozenset({"ValueUnreadable", "NoPlan", "NullKey"}))
        if message.key is None:
            return Done(errors=frozenset({"NullKey"}))
        state, reads = dict(self._state.get(message.key, {})), list[str]()
        try:
            for op in message.ops:
                try:
                    reads.append(shown(self._perform(op, state)))
                except Refused:
                    if not op.caught:
                        raise
            sent = self._send(message)
        except Refused as refused:
            return Done(errors=frozenset(refused.names), reads=tuple(reads))
        self._state[message.key] = state
        return Done(sent=sent, reads=tuple(reads))

    def _perform(self, op: Op, state: dict[str, Any]) -> Any:
        if op.kind == "raise":
            exits = issubclass(op.value, (SystemExit, GeneratorExit))
            raise Refused("FunctionExits" if exits else op.value.__name__)
        value = None
        if op.kind == "set":
            value = state_of(op.value)
        elif op.kind == "set_bytes":
            if not isinstance(op.value, bytes):
                raise Refused("TypeError")
            value = op.value
        if not isinstance(op.name, str):
            raise Refused("TypeError")
        _encoded(op.name, "UnicodeEncodeError")
        if op.kind in ("set", "set_bytes"):
            if _too_large(value):
                raise Refused("RecordTooLarge")
            state[op.name] = value
            return None
        if op.kind == "get_bytes" and not isinstance(state.get(op.name), (bytes, type(None))):
            raise Refused("TypeError")
        if op.kind == "delete":
            state.pop(op.name, None)
            return None
        return op.name in state if op.kind == "exists" else state.get(op.name)

    def _send(self, message: Message) -> Sent:
        value = _written(self._serializer, message.returns)
        key = message.out_key.encode() if isinstance(message.out_key, str) else message.out_key
        if key is not None and not isinstance(key, bytes):
            raise Refused("ValueUnwritable")
        headers = _headers_of(message.out_headers)
        faults = set()
        if _too_large(value):
            faults.add("RecordTooLarge")
        ahead = message.time_ms in (FAR_AHEAD_MS, BEYOND_MS) and not self._takes_future
        if ahead or (message.time_ms in (1, -1, 1_000_000_000_000) and not self._takes_past):
            faults.add("RecordTimeRefused")
        if faults:
            raise Refused(*faults)
        return Sent(key, value, headers)


def shown(value: Any) -> str:
    """Return a text that differs for values that ``==`` treats as equal, for example -0.0 and 0.0, or True and 1."""
    return repr(value)


def parsed(kind: str, raw: bytes | None) -> Any:
    """Return an output's value as a consumer reads it. JSON is parsed; other bytes stay unchanged."""
    return json.loads(raw) if kind == "json" and raw is not None else raw


def _headers_of(made: Any) -> tuple[tuple[str, bytes | None], ...]:
    pairs: Any = list(made.items()) if isinstance(made, dict) else made
    if pairs is None:
        return ()
    if not isinstance(pairs, list) or any(len(pair) != 2 for pair in pairs):
        raise Refused("ValueUnwritable")
    written = []
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, (str, bytes, type(None))):
            raise Refused("ValueUnwritable")
        _encoded(name, "ValueUnwritable")
        written.append((name, value.encode() if isinstance(value, str) else value))
    return tuple(written)


def _too_large(value: Any) -> bool:
    return "x" * LONG in repr(value)
