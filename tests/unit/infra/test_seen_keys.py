"""Keys that were seen: all of them, by the key itself and not by a hash."""

from holdfast.infra.seen_keys import SeenKeys


def test_each_key_is_new_once() -> None:
    with SeenKeys() as seen:
        keys = [b"", b"a", b"A", b"\0", b"a\0", "grüße".encode(), *(b"%d" % number for number in range(5_000))]
        assert all(seen.add(key) for key in keys)
        assert not any(seen.add(key) for key in keys)
        assert len(seen) == len(keys)


def test_sets_of_keys_know_nothing_of_each_other() -> None:
    with SeenKeys() as one, SeenKeys() as other:
        assert one.add(b"a")
        assert other.add(b"a")
