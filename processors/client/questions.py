"""Questions to workers as data: the path, the parameters, and what decides which worker is asked first."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypedDict
from urllib.parse import quote, urlencode

from holdfast.processors.engine.queries.demand import WAIT_S, Position
from holdfast.processors.engine.queries.errors import QueryWrong

#: Maximum number of entries of one answer, and of keys in one request. The workers have the same limits.
ENTRIES_MAX, KEYS_MAX = 1_000, 100
#: Maximum bytes of the keys in one request. A worker accepts 16 KiB of request line and headers.
KEYS_BYTES_MAX = 8_000

#: A message key: text, bytes, or a number for stores with such keys.
Key = str | bytes | int | float
#: An input position: topic, partition, and the next offset.
Place = tuple[str, int, int]
Params = tuple[tuple[str, str], ...]


class Demands(TypedDict, total=False):
    """What every query can demand of its answer.

    Attributes:
        after: The positions that the answer must have reached: an earlier answer, its ``position``, tuples of (topic,
            partition, next offset), or the text ``<topic>:<partition>:<next offset>``. A program that has produced a
            record with offset 41 demands 42.
        max_age: Maximum seconds since the worker last knew that its state was the newest.
        stale_ok: Seconds by which the answer of a standby may be behind.
        wait: Seconds that a worker may wait until the demands are met; 2 by default, at most 30.
    """

    after: object
    max_age: float
    stale_ok: float
    wait: float


@dataclass(frozen=True, slots=True)
class Question:
    """One request, before it is known which worker answers.

    Attributes:
        path: The path of the route, with quoted parts.
        key: The key as the route has it; None if the question is not about one key.
        partition: The partition of a page; None if the key decides.
        redirects: Whether the asked worker may name the owner instead of forwarding the question. A page of keys must
            not be redirected: the answer of one partition does not lead to the next partition.
        prefers: The URL of the worker that should be asked first.
    """

    path: str
    params: Params = ()
    store: str = ""
    key: str | None = None
    partition: int | None = None
    redirects: bool = False
    prefers: str | None = None
    wait_s: float = WAIT_S
    max_age_s: float | None = None

    def target(self, *, redirect: bool = False) -> str:
        """Returns the path with the query."""
        params = (*self.params, *((("redirect", "true"),) if redirect else ()))
        return f"{self.path}?{urlencode(params)}" if params else self.path


def about_key(route: str, store: str, key: Key, params: Iterable[tuple[str, str | None]], demands: Demands) -> Question:
    """A question about one key. ``params`` with the value None are left out.

    Args:
        route: ``keys`` or ``windows`` of a store, or ``tables``.

    Raises:
        QueryWrong: The key has another type.
    """
    text, encoding = _sent(key)
    head = f"/tables/{_part(store)}" if route == "tables" else f"/stores/{_part(store)}/{route}"
    given = tuple((name, value) for name, value in params if value is not None)
    return _demanding(
        Question(f"{head}/{_part(text)}", (*given, *encoding), store, f"{text} {encoding}", redirects=True), demands
    )


def about_global_row(topic: str, key: Key) -> Question:
    """A question about a row of a global table, which each worker has. Raises QueryWrong."""
    text, encoding = _sent(key)
    return Question(f"/global-tables/{_part(topic)}/{_part(text)}", encoding, topic)


def about_page(store: str, bounds: dict[str, Key | None], page: str, limit: int, demands: Demands) -> Question:
    """A question about one page of keys.

    Args:
        bounds: ``prefix``, ``start`` and ``end``; all are bytes, or none is.
        page: ``next`` of the last page; empty for the first page.

    Raises:
        QueryWrong: A bound has another type, or texts and bytes are mixed.
    """
    given = {name: _sent(bound) for name, bound in bounds.items() if bound is not None}
    encodings = {encoding for _, encoding in given.values()}
    if len(encodings) > 1:
        raise QueryWrong(
            f"{' and '.join(f'`{name}`' for name in given)} mix text and bytes; expected one kind.",
            action="Pass all of them as bytes.",
        )
    params = [(name, text) for name, (text, _) in given.items()]
    params += [("limit", str(limit)), *((("page", page),) if page else ())]
    number = page.partition(".")[0]
    partition = int(number) if number.isdecimal() else 0
    made = Question(f"/stores/{_part(store)}/keys", (*params, *next(iter(encodings), ())), store, partition=partition)
    return _demanding(made, demands)


@dataclass(frozen=True, slots=True)
class Batch:
    """A question about several keys, and the places of these keys in the caller's list."""

    question: Question
    at: tuple[int, ...]


def about_many(store: str, keys: Sequence[Key], prefers: Sequence[str | None], demands: Demands) -> list[Batch]:
    """Questions about many keys: each has keys of one kind that one worker probably has, within a request's limits.

    Args:
        prefers: For each key, the URL of the worker that probably has it.

    Raises:
        QueryWrong: A key has another type.
    """
    groups: dict[tuple[str | None, Params], list[list[tuple[int, str]]]] = {}
    for at, (key, url) in enumerate(zip(keys, prefers, strict=True)):
        text, encoding = _sent(key)
        parts = groups.setdefault((url, encoding), [[]])
        size = sum(len(quote(each, safe="")) + len("&key=") for _, each in [*parts[-1], (at, text)])
        if parts[-1] and (len(parts[-1]) >= KEYS_MAX or size > KEYS_BYTES_MAX):
            parts.append([])
        parts[-1].append((at, text))
    return [
        Batch(
            _demanding(
                Question(
                    f"/stores/{_part(store)}/keys",
                    (*(("key", text) for _, text in part), ("limit", str(ENTRIES_MAX)), *encoding),
                    store,
                    prefers=url,
                ),
                demands,
            ),
            tuple(at for at, _ in part),
        )
        for (url, encoding), parts in groups.items()
        for part in parts
        if part
    ]


def name_of(key: Key) -> str:
    """The text by which the client remembers where a key is."""
    text, encoding = _sent(key)
    return f"{text} {encoding}"


def after_text(after: object) -> str:
    """Returns the parameter ``after``.

    Raises:
        QueryWrong: The value is neither an answer, nor a position, nor tuples, nor a text.
    """
    if isinstance(after, str):
        return after
    several = getattr(after, "positions", None)
    if several is not None:
        return ",".join(after_text(each) for each in several)
    if isinstance(after, Position):
        return ",".join(f"{topic}:{after.partition}:{at}" for topic, at in sorted(after.inputs.items()))
    if isinstance(after, tuple) and len(after) == 3 and isinstance(after[0], str):
        return f"{after[0]}:{after[1]}:{after[2]}"
    if isinstance(after, Iterable) and not isinstance(after, (bytes, bytearray)):
        return ",".join(text for each in after if (text := after_text(each)))
    raise QueryWrong(
        f"`after` is {after!r}; expected an answer, a position, or tuples of (topic, partition, next offset).",
        action='Pass, for example, after=[("orders", 0, 42)], which is the position behind offset 41.',
    )


def milliseconds_of(moment: int | datetime | None) -> str | None:
    """Returns a time of a window as a parameter. Raises QueryWrong for a ``datetime`` without a time zone."""
    if not isinstance(moment, datetime):
        return None if moment is None else str(moment)
    if moment.tzinfo is None:
        raise QueryWrong(
            f"The time {moment} has no time zone.", action="Pass, for example, datetime(2026, 11, 30, tzinfo=UTC)."
        )
    return str(int(moment.timestamp() * 1000))


def _demanding(question: Question, demands: Demands) -> Question:
    wait_s, max_age_s, stale_s = (_seconds(name, demands.get(name)) for name in ("wait", "max_age", "stale_ok"))
    given = (
        ("after", after_text(demands["after"]) if demands.get("after") is not None else ""),
        ("wait", "" if wait_s is None else f"{wait_s!r}"),
        ("max_age", "" if max_age_s is None else f"{max_age_s!r}"),
        ("stale_ok", "" if stale_s is None else f"{stale_s!r}"),
    )
    return replace(
        question,
        params=(*question.params, *(each for each in given if each[1])),
        wait_s=WAIT_S if wait_s is None else wait_s,
        max_age_s=max_age_s,
    )


def _seconds(name: str, given: object) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < float("inf"):
        raise QueryWrong(f"`{name}` is {given!r}; expected seconds from 0.", action=f"Pass, for example, {name}=2.")
    return float(given)


def _part(text: str) -> str:
    """Quotes a part of a path. Clients remove the parts ``.`` and ``..``, so their dots are quoted, too."""
    return quote(text, safe="").replace(".", "%2E") if text.strip(".") == "" else quote(text, safe="")


def _sent(key: Key) -> tuple[str, Params]:
    """Returns a key as text, with the parameter that says how the text is meant."""
    if isinstance(key, (bytes, bytearray)):
        return base64.urlsafe_b64encode(key).decode().rstrip("="), (("encoding", "base64"),)
    if isinstance(key, bool) or not isinstance(key, (str, int, float)):
        raise QueryWrong(
            f"The key is {key!r} of type {type(key).__name__}; expected text, bytes or a number.",
            action="Pass the key as the topic has it: str, or bytes.",
        )
    return str(key), ()
