"""A store's windows, timers and TTL are described as data and as lines of text.

Both descriptions agree for all topologies whose descriptions are stored in tests/unit/pins.
"""

from __future__ import annotations

import re

from holdfast.processors.engine.store_uses import Ms, TimerUse, TtlUse, WindowUse, in_milliseconds
from holdfast.processors.engine.topology import StoreSpec
from holdfast.processors.lifecycle.plans.store_words import in_duration, kept_of_time
from tests.combinations.topology import built
from tests.unit.pins.what_is_pinned import pinned


def stores() -> list[StoreSpec]:
    settings = {"consumer_group": "pinned", "auto_offset_reset": "earliest"}
    apps = [built(each["code"], {**each["settings"], **settings}) for each in pinned("drawn")]
    return [store for app in apps for store in app.topology().stores]


def read(line: str) -> str | None:
    """Translate one line of a store's description into words for users, as an older version of Holdfast did.

    Returns None for a line that is not about a window, timers or a TTL.
    """
    text = re.sub(r"(\d+) ms\b", lambda found: in_duration(int(found[1])), line)
    if line.startswith("window = "):
        kind, _, rest = text.removeprefix("window = ").partition(" ")
        count = rest.startswith("count ")
        rest = rest.removeprefix("count ").replace(", ", " messages, ", 1) if count else rest
        return f"{kind} {'count ' if count else ''}windows: {rest}"
    if line == "ttl = by value":
        return "values that end when their `ttl` says"
    if line.startswith("ttl = "):
        return f"values that end after {text.removeprefix('ttl = ')}"
    return "timers" if line == "timers" else None


def test_lines_and_words_say_the_same() -> None:
    found = stores()
    kinds = {(type(use), getattr(use, "kind", "")) for store in found for use in store.uses}
    assert {(WindowUse, kind) for kind in ("tumbling", "hopping", "session", "sliding")} <= kinds
    assert {(TtlUse, ""), (TimerUse, "")} <= kinds
    for store in found:
        assert kept_of_time(store) == "; ".join(said for line in store.columns if (said := read(line))), store


def test_windows_with_a_span_are_those_by_time_that_do_not_slide() -> None:
    for store in stores():
        by_lines = store.kind == "window" and not store.columns[0].startswith("window = sliding ")
        assert store.has_windows == by_lines, store


def test_a_duration_is_written_as_its_text_needs_it() -> None:
    use = WindowUse("session", False, ("gap ", Ms(90_000), ", grace ", Ms(500)))
    assert use.text() == "gap 90000 ms, grace 500 ms"
    assert use.text(in_duration) == "gap 90 s, grace 500 ms"
    assert in_milliseconds(7) == "7 ms"
