"""Draws input messages from a seed: few keys, some of them falsy; equal times, disorder, late messages, odd numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from holdfast.infra.kafka.topics.partitioners import murmur2
from tests.combinations.topology import Message

KEYS = (b"k0", b"k1", b"k2", b"k3", b"", b"0", b"\x00\xff")
#: Values of the fields that streams are grouped by: a key of ``group_by`` may be a string, an integer or a Boolean.
FIELDS: tuple[Any, ...] = ("k0", "k1", "k2", "", 0, False, "0")
NUMBERS: tuple[Any, ...] = (0, -0.0, 0.1, 0.2, 1e300, -1e300, 2**53, 2**53 + 1, -7, 3)
UNREADABLE = (b"{", b'{"n": NaN}', b"\xff", b"")


@dataclass(frozen=True, slots=True)
class Needs:
    """The properties that a topology requires of its input messages.

    Attributes:
        sorted: Messages of a partition are in the order of their times.
        unique: No two messages have the same time.
        calm: Messages are out of order by less than a grace.
        plain: Sums do not depend on the order of addition.
        text: Keys are valid strings.
        texts: Fields that serve as keys are strings, like the keys of a global table.
        spoilt: There are unreadable messages and messages without a key, which become dead letters.
    """

    sorted: bool = False
    unique: bool = False
    calm: bool = False
    plain: bool = False
    text: bool = False
    texts: bool = False
    spoilt: bool = False


def draw_messages(random: Random, topics: Sequence[str], partitions: int, needs: Needs) -> tuple[Message, ...]:
    """Draws the messages of all topics, in the order in which they are produced."""
    keys: tuple[bytes | None, ...] = KEYS[: random.choice([1, 2, 4, len(KEYS) - needs.text])]
    if needs.spoilt:
        keys = (*keys, *keys, None)
    fields = FIELDS[: random.choice([2, 3, len(FIELDS) if not needs.texts else 4])]
    spread = random.choice([0, 300, 300, 5_000]) if not needs.calm else 300
    odd = not needs.plain and random.random() < 0.3
    steps = random.choice([(0, 1, 30), (0, 100, 200, 600), (50, 100)] if not needs.calm else [(0, 1, 30), (0, 60, 150)])
    made, at, taken = list[Message](), 2 * spread, set[int]()
    for number in range(random.randint(10, 45) * len(topics)):
        at += random.choice(steps)
        topic = random.choice(topics)
        time = at
        if not needs.sorted and random.random() < 0.3:
            time -= random.randint(0, spread)
        while needs.unique and time in taken:
            time += 1
        if needs.sorted:
            at = max(at, time)
        taken.add(time)
        value = _value(random, number, fields, odd=odd)
        raw = None if topic.startswith("r") and random.random() < 0.15 else json.dumps(value).encode()
        if needs.spoilt and random.random() < 0.05:
            raw = random.choice(UNREADABLE)
        headers = (("x", b"%d" % number),) if random.random() < 0.2 else ()
        made.append(Message(topic, time, random.choice(keys), raw, headers))
    if random.random() < 0.7:
        made += _closing(topics, at + 6_000, len(made))
    return tuple(made)


def _closing(topics: Sequence[str], at: int, number: int) -> list[Message]:
    """Messages that reach each partition and close all open windows, for any of the possible numbers of partitions."""
    names, left = list[str](), {(count, place) for count in (1, 2, 3, 4) for place in range(count)}
    for name in map("z{}".format, range(1_000)):
        hashed = murmur2(name.encode()) & 0x7FFFFFFF
        new = left & {(count, hashed % count) for count in (1, 2, 3, 4)}
        if len(new) > 1 or (new and len(names) > 3):
            left -= new
            names.append(name)
        if not left:
            break
    return [
        Message(
            topic,
            at + index,
            name.encode(),
            json.dumps({"n": number + index, "v": 1, "h": "k0", "g": "k1", "d": 9}).encode(),
        )
        for index, (topic, name) in enumerate((topic, name) for name in names for topic in topics)
    ]


def _value(random: Random, number: int, fields: Sequence[Any], *, odd: bool) -> dict[str, Any]:
    return {
        "n": number,
        "v": random.choice(NUMBERS) if odd else random.randint(0, 9),
        "h": random.choice(fields),
        "g": random.choice(fields),
        "d": random.randint(0, 4),
    }
