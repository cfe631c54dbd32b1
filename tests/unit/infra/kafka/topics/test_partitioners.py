"""The partitioner that a topic's producer used is derived from the partitions of the topic's keys."""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.topics.partitioners import CRC32, MURMUR2, NEITHER, PARTITIONERS, UNKNOWN, spread_of

KEYS = [f"key-{number}".encode() for number in range(50)]


@pytest.mark.parametrize("name", [MURMUR2, CRC32])
def test_the_partitioner_that_put_keys_where_they_are_is_found(name: str) -> None:
    assert spread_of(((PARTITIONERS[name](key, 7), key) for key in KEYS), 7) == name


def test_where_keys_speak_for_none_nothing_is_guessed() -> None:
    assert spread_of([], 7) == UNKNOWN
    assert spread_of(((number % 7, key) for number, key in enumerate(KEYS)), 7) == NEITHER
    assert spread_of([(0, b"a"), (1, b"a")], 2) == NEITHER
