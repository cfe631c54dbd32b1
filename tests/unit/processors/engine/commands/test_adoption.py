"""The changes that turn one store's content into another's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

import pytest

from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.commands import content as contents
from holdfast.processors.engine.commands import sweep
from holdfast.processors.engine.commands.content import Difference, of_keys_in


def content(random: Random) -> dict[bytes, bytes]:
    keys = [b"%02d" % number for number in range(40)]
    return {key: random.choice([b"a", b"b", b"longer"]) for key in keys if random.random() < 0.5}


def read_of(content: Mapping[bytes, bytes]) -> object:
    def read(first: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((key, value) for key, value in content.items() if key >= first))

    return read


@pytest.mark.parametrize("seed", range(50))
def test_after_all_batches_the_one_is_the_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    for module, name in ((sweep, "ENTRIES_MAX"), (sweep, "BYTES_MAX"), (contents, "LOOKS_MAX")):
        monkeypatch.setattr(module, name, random.choice([1, 2, 7, 1000]))
    current, wanted = content(random), content(random)
    before = dict(current)
    difference = Difference(read_of(current), read_of(wanted))  # type: ignore[arg-type]
    while not difference.done:
        writes = difference.batch()
        assert len(writes.keys) <= sweep.ENTRIES_MAX
        for key, value in zip(writes.keys, writes.values, strict=True):
            assert before.get(key) != value, "what is the same is not written"
            if value is None:
                del current[key]
            else:
                current[key] = value
    assert current == wanted
    assert difference.deleted == len(before.keys() - wanted.keys())
    assert difference.same == len(before.items() & wanted.items())
    assert difference.set == len(wanted) - difference.same


@pytest.mark.parametrize("seed", range(50))
def test_only_the_keys_of_the_other_content_are_changed_when_the_others_are_kept(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    for module, name in ((sweep, "ENTRIES_MAX"), (sweep, "BYTES_MAX"), (contents, "LOOKS_MAX")):
        monkeypatch.setattr(module, name, random.choice([1, 2, 7, 1000]))
    heads = [key_prefix(key) for key in (b"", b"a", b"aa", b"ab", b"b", b"ba", b"\xff")]

    def some() -> dict[bytes, bytes]:
        keys = [head + state for head in heads if random.random() < 0.6 for state in (b"", b"m", b"n")]
        return {key: random.choice([b"x", b"y"]) for key in keys if random.random() < 0.7}

    current, wanted = some(), some()
    named = {head for head in heads for key in wanted if key.startswith(head)}
    expected = {**{key: value for key, value in current.items() if not any(map(key.startswith, named))}, **wanted}
    held = of_keys_in(read_of(wanted), read_of(current))  # type: ignore[arg-type]
    difference = Difference(held, read_of(wanted))  # type: ignore[arg-type]
    while not difference.done:
        writes = difference.batch()
        for key, value in zip(writes.keys, writes.values, strict=True):
            if value is None:
                del current[key]
            else:
                current[key] = value
    assert current == expected
