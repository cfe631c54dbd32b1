"""The work of every contender of the bench: the messages, the fold, the expected result and its hash.

A message is JSON of 119 bytes; the key is the user. The fold keeps the count, total, smallest and largest amount of
each key. For each message it outputs one record with these and the mean. Amounts are doubles. All contenders add them
in the order of the partition, so results are equal to the last bit.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

PARTITIONS = 4
MESSAGE_BYTES = 119
#: The time of the first event; each message is one millisecond later. It is fixed, so that all runs have the same
#: bytes.
FIRST_TIMESTAMP_MS = 1_735_689_600_000
SEED = 20_260_101

_CURRENCIES = ("EUR", "USD", "GBP", "CHF")
_METHODS = ("card", "cash", "wire")
_RESULT = struct.Struct("<qdddd")


@dataclass(frozen=True, slots=True)
class Message:
    """One message; its key determines its partition."""

    number: int
    user: int
    amount: str

    @property
    def key(self) -> bytes:
        return key_of(self.user)

    @property
    def partition(self) -> int:
        return self.user % PARTITIONS

    def body(self, timestamp: int) -> bytes:
        """The message as JSON, with a time in milliseconds (13 digits) or in microseconds."""
        return (
            f'{{"user_id":"user-{self.user:08d}","amount":{self.amount},"ts":{timestamp},'
            f'"currency":"{_CURRENCIES[self.number & 3]}","method":"{_METHODS[self.number % 3]}",'
            f'"merchant":"shop-{self.number % 9_973:05d}"}}'
        ).encode()


class Totals(msgspec.Struct):
    """The JSON content of an output: the totals of its key."""

    count: int
    total: float
    mean: float
    min: float
    max: float


Final = Mapping[bytes, Totals]


def key_of(user: int) -> bytes:
    """The message key of a user."""
    return b"user-%08d" % user


def messages(count: int, keys: int) -> Iterator[Message]:
    """The messages, which are the same each time; their keys are drawn uniformly."""
    draw = random.Random(SEED).random
    for number in range(count):
        user = int(draw() * keys)
        yield Message(number, user, f"{100 + int(draw() * 90_000) / 100:.2f}")


def bodies(count: int, keys: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Partition, key and value of each message."""
    for message in messages(count, keys):
        yield message.partition, message.key, message.body(FIRST_TIMESTAMP_MS + message.number)


#: A prime that divides no number of keys, so its multiples modulo that number reach each key once.
SCATTER = 15_485_863


@dataclass(frozen=True, slots=True)
class SeededState:
    """State that exists before the first message, as ``records`` changelog records of ``keys`` keys.

    The keys come in a scattered order, because sorted keys would make the work of every store easier.
    """

    records: int
    keys: int

    def items(self) -> Iterator[tuple[int, int, float, float, float]]:
        """User, count, total, min and max of each record, in the order of the changelog."""
        for number in range(self.records):
            user, times = number * SCATTER % self.keys, number // self.keys + 1
            amount = 100.25 + user % 500
            yield user, times, amount * times, amount, amount

    def of(self, user: int) -> tuple[int, float, float, float] | None:
        """The content of a user's last record."""
        place = user * pow(SCATTER, -1, self.keys) % self.keys
        times = (self.records - place - 1) // self.keys + 1 if user < self.keys else 0
        amount = 100.25 + user % 500
        return (times, amount * times, amount, amount) if times else None


def expected(count: int, keys: int, seeded: SeededState | None = None) -> dict[bytes, Totals]:
    """The expected last output of each key, computed in plain Python."""
    state: dict[int, tuple[int, float, float, float]] = {}
    before: Callable[[int], tuple[int, float, float, float] | None] = seeded.of if seeded else lambda user: None
    for message in messages(count, keys):
        amount = float(message.amount)
        times, total, least, most = state.get(message.user) or before(message.user) or (0, 0.0, amount, amount)
        state[message.user] = (times + 1, total + amount, min(least, amount), max(most, amount))
    return {
        key_of(user): Totals(times, total, total / times, least, most)
        for user, (times, total, least, most) in state.items()
    }


def hash_of(final: Iterable[tuple[bytes, Totals]]) -> str:
    """The sha256 over all keys in order, each with the bits of its totals."""
    digest = hashlib.sha256()
    for key, of in sorted(final, key=lambda item: item[0]):
        digest.update(key + _RESULT.pack(of.count, of.total, of.mean, of.min, of.max))
    return digest.hexdigest()
