"""Keys that ``to_topic`` passes on: how the key of a message becomes the key of an output topic with other keys.

A topic declares the type of its keys by ``key_deserializer`` and ``key_serializer``. Where an output topic has the same
type, or the type ``bytes``, the bytes of the key are sent unchanged. Otherwise, the key is deserialized and serialized
again::

    topic in: key_deserializer="integer"                 topic out: key_serializer="long"
    00 00 00 07 ──────────────► 7 ──────────────► 00 00 00 00 00 00 00 07
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from holdfast.processors.engine.dataframe.plain_loop import unwritable
from holdfast.processors.engine.formats.binary import NUMBERS
from holdfast.processors.engine.formats.kafka_message import UNWRITABLE
from holdfast.processors.engine.formats.serialization import (
    ValueUnreadable,
    ValueUnwritable,
    as_is,
    deserializer,
    name_of_deserializer,
    serializer,
)
from holdfast.processors.engine.formats.topic_format import TopicFormat
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.group_key import text_of_key
from holdfast.processors.engine.steps.topic import Topic

#: A function of a key's bytes in the input topic. It returns the key's bytes in the output topic.
KeyChange = Callable[[bytes], bytes]

_ALIASES = {"string": "str", "int": "integer"}
_NAMES = ("bytes", "str", "json", "msgpack", *NUMBERS)
_WHOLE, _FRACTIONS = frozenset(("short", "integer", "long")), frozenset(("float", "double"))
#: Maps each format to those formats whose keys it can write. A key of ``json`` or ``msgpack`` may have any type, so
#: only its serializer can tell whether the key fits.
_ANY = frozenset(("json", "msgpack"))
_TAKES: Mapping[str, frozenset[str]] = {
    "str": _ANY | {"bytes", "str"},
    **dict.fromkeys(_WHOLE, _ANY | _WHOLE),
    **dict.fromkeys(_FRACTIONS, _ANY | _WHOLE | _FRACTIONS),
    **dict.fromkeys(_ANY, _ANY | _WHOLE | _FRACTIONS | {"str"}),
}


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of the messages of one topic.

    Attributes:
        topic: The topic.
        format: The name of the keys' format, or the user's deserializer.
        read: Deserializes a key, as for user functions.
        are_texts: Whether the engine wrote the keys as texts, although user functions get bytes: keys of ``group_by``.
    """

    topic: Topic
    format: Any
    read: Callable[[bytes], Any]
    are_texts: bool = False

    @property
    def kind(self) -> Any:
        """What is equal for topics whose keys have the same format."""
        return self.format.text if isinstance(self.format, TopicFormat) else self.format


def keys_of(topic: Topic) -> Keys:
    """Returns the format of a topic's keys.

    A topic without a ``key_deserializer`` has the format of its ``key_serializer``, if this has a name.
    """
    given = topic.formats
    reads = _named(given.key_deserializer)
    if reads != "bytes":
        return Keys(topic, reads, topic.deserialize_key)
    if topic.between == "table groups" or given.key_serializer is text_of_key:
        return Keys(topic, "str", as_is, are_texts=True)
    writes = _named(given.key_serializer)
    if isinstance(writes, str):
        return Keys(topic, writes, deserializer(writes))
    return Keys(topic, "bytes", as_is)


def key_change(sources: Sequence[Topic], to: Topic) -> KeyChange | None:
    """Returns the function that changes the keys of ``sources`` to keys of the topic ``to``; None if they are the same.

    Raises:
        StepInvalid: A key of a source can't be a key of ``to``.
    """
    if _named(to.formats.key_serializer) == "bytes":
        return None
    found = {keys.kind: keys for keys in map(keys_of, sources)}
    changes = {kind: change for kind, keys in found.items() if (change := _change(keys, to)) is not None}
    if len(changes) == 1 and (len(found) == 1 or changes.keys() == {"bytes"}):
        return next(iter(changes.values()))
    if changes:
        raise _several(found, to)
    return None


def key_change_or_refusal(sources: Sequence[Topic], to: Topic) -> KeyChange | None:
    """Like ``key_change``, but the refusal of keys is raised for each message, and not now.

    It is for topics that a function chooses, because the function may never choose this topic.
    """
    try:
        return key_change(sources, to)
    except StepInvalid as failure:
        message, action = failure.message, failure.action

    def refuse(raw: bytes) -> NoReturn:
        raise ValueUnwritable(message, action=action, topic=to.name)

    return refuse


def _change(keys: Keys, to: Topic) -> KeyChange | None:
    writes = _named(to.formats.key_serializer)
    if writes == keys.kind or (keys.format == "bytes" and writes is keys.topic.formats.key_serializer):
        return None
    if isinstance(writes, str) and isinstance(keys.format, str) and keys.format not in _TAKES[writes]:
        raise _refused(keys, to, writes)
    if isinstance(writes, TopicFormat) and keys.format == "bytes":
        raise _refused(keys, to, type(writes).__name__)
    if keys.format == "bytes" and writes == "str":
        return _again(keys, to, bytes.decode)
    as_texts = keys.are_texts and isinstance(writes, str | TopicFormat)
    return _again(keys, to, bytes.decode if as_texts else keys.read)


def _again(keys: Keys, to: Topic, read: Callable[[bytes], Any]) -> KeyChange:
    write, source = to.serialize_key, keys.topic.name

    def again(raw: bytes) -> bytes:
        try:
            key = read(raw)
        except UNWRITABLE as failure:
            raise ValueUnreadable(
                f"A key of topic {source} can't be read for topic {to.name}: {failure} (the key begins with "
                f"{raw[:40]!r}).",
                action=f"Correct the producer or the `key_deserializer` of {source}, or set `dead_letter_topic`.",
                topic=source,
            ) from failure
        try:
            return write(key)
        except UNWRITABLE as failure:
            raise unwritable("key", key, to.name, failure) from failure

    return again


def _named(given: Any) -> Any:
    """Returns the name of a built-in (de)serializer; any other function or object is returned unchanged."""
    if isinstance(given, str):
        return _ALIASES.get(given, given)
    known = name_of_deserializer(given) or next((name for name in _NAMES if serializer(name) is given), None)
    return given if known is None else _ALIASES.get(known, known)


def _refused(keys: Keys, to: Topic, writes: str) -> StepInvalid:
    topic = keys.topic
    where = "that `group_by`" if topic.repartitions else f"`app.topic({topic.name!r})`"
    if keys.are_texts and topic.repartitions and not topic.between:
        action = f"Write `key_serializer={writes!r}, key_deserializer={writes!r}` in {where}"
    elif keys.format != "bytes":
        action = _by_function(to, writes)
    elif writes in _NAMES:
        action = f"Write `key_deserializer={writes!r}` in {where}, if its keys are such"
    else:
        action = f"Write in {where} the `key_deserializer` of this format, if its keys are such"
    return StepInvalid(
        f"`to_topic` passes keys of topic {topic.name} to topic {to.name}. They are `{keys.format}`, which the key "
        f"serializer `{writes}` of {to.name} can't write.",
        action=f"{action}; or make the key of the value: `to_topic(..., key=lambda value: value['id'])`.",
        topic=to.name,
    )


def _by_function(to: Topic, writes: str) -> str:
    made = {
        "str": "lambda key: str(key).encode()",
        **{name: f"lambda key: int(key).to_bytes({NUMBERS[name].size}, 'big', signed=True)" for name in _WHOLE},
        **{name: f"lambda key: struct.pack('>{NUMBERS[name].format[-1]}', float(key))" for name in _FRACTIONS},
    }
    return f"Write `key_serializer={made.get(writes, 'function')}` in `app.topic({to.name!r})`"


def _several(found: Mapping[Any, Keys], to: Topic) -> StepInvalid:
    told = " and ".join(f"topic {keys.topic.name} with keys of {_shown(keys.format)}" for keys in found.values())
    return StepInvalid(
        f"`to_topic` got topic {to.name}, whose keys have another format, and a stream of {told}.",
        action="Call `to_topic` on each stream before the streams are put together; or make the key of the value: "
        "`to_topic(..., key=lambda value: value['id'])`.",
        topic=to.name,
    )


def _shown(given: Any) -> str:
    return f"`{given}`" if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
