"""A set of seen keys on disk: it compares whole keys, not hashes, and keeps none of them in memory."""

import os
from pathlib import Path

from holdfast.infra.seen_keys import SeenKeys
from tests.colliding import colliding_texts

_PAGE = os.sysconf("SC_PAGE_SIZE")


def test_each_key_is_new_once() -> None:
    with SeenKeys() as seen:
        keys = [b"", b"a", b"A", b"\0", b"a\0", "grüße".encode(), *(b"%d" % number for number in range(5_000))]
        assert all(seen.add(key) for key in keys)
        assert not any(seen.add(key) for key in keys)
        assert len(seen) == len(keys)


def test_two_keys_with_one_hash_are_two_keys() -> None:
    with SeenKeys() as seen:
        one, other = (each.encode() for each in colliding_texts())
        assert seen.add(one)
        assert seen.add(other)
        assert not seen.add(other)
        assert len(seen) == 2


def test_sets_of_keys_know_nothing_of_each_other() -> None:
    with SeenKeys() as one, SeenKeys() as other:
        assert one.add(b"a")
        assert other.add(b"a")


def test_a_key_takes_no_memory() -> None:
    """200,000 keys of 100 bytes must take less than 8 MiB of memory.

    The keys are 20 MB, a set of their hashes 15 MB.
    """
    with SeenKeys() as seen:
        assert seen.add(b"first")
        before = _resident()
        for number in range(200_000):
            seen.add(b"%0100d" % number)
        assert _resident() - before < 8 << 20
        assert len(seen) == 200_001


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
