"""The routes of queries about state.

    GET /stores                                the stores, their kinds and partitions
    GET /stores/{store}/keys/{key}             one key: ?state_key= &prefix= &start= &end= &limit= &page= &raw=true
    GET /stores/{store}/keys                   many keys: ?key=a&key=b, or a page: &prefix= &start= &end= &partition=
    GET /stores/{store}/windows/{key}          windows of one key: ?from= &to= (milliseconds since 1970) &limit= &page=
    GET /stores/{store}/count                  an estimate of the records
    GET /tables/{table}/{key}                  the row of a table
    GET /global-tables/{topic}/{key}           the row of a global table
    GET /openapi.json                          this list as an OpenAPI document

Routes of keys, windows and tables also take ``encoding=base64`` (keys), ``partition``, ``after``, ``max_age``,
``stale_ok``, ``wait`` and ``redirect=true``. ``queries.demand`` explains them. A parameter that a route does not have
is refused.

    status   meaning
    200      the answer, with its position
    404      no such store (``error``), or no such key (``found`` is false, with the positions that were read)
    400      the query is wrong
    401      the token is missing or wrong
    421      a forwarded query reached a worker that does not own the task
    503      no worker can answer now: the reason, and ``Retry-After``

A query is answered at once if this worker has the state. Otherwise it goes to a thread, which asks the owner.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

import msgspec

from holdfast.infra.clock import Clock
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.joins.table_rows import ROW
from holdfast.processors.engine.queries.demand import (
    DIGITS_MAX,
    PARTITION_MAX,
    SECONDS_MAX,
    WAIT_MAX_S,
    WAIT_S,
    Demand,
    parse_after,
)
from holdfast.processors.engine.queries.entries import MessageKeys, StateKeys
from holdfast.processors.engine.queries.errors import QueryWrong, StateAway, StoreUnknown
from holdfast.processors.engine.queries.figures import QueryCounts, QueryFigures
from holdfast.processors.engine.queries.service import (
    ALL_STATE_KEYS,
    KEYS_MAX,
    LIMIT,
    LIMIT_MAX,
    KeyQuery,
    NotHere,
    RawValue,
    ScanQuery,
    StateService,
    page_key,
    page_of_keys,
)
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import Answer, Head, Later
from holdfast.processors.engine.serving.state.openapi import DOCUMENT, OPENAPI, parameters_of
from holdfast.processors.engine.serving.state.peers import MISDIRECTED, Peer, Peers
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS
from holdfast.processors.engine.state.time.time_records import Span

_PAGES = ("/stores", "/tables/", "/global-tables/")
_encode = msgspec.json.encode

#: A function that returns whether a global table has a row of a key, and the row.
GlobalRow = Callable[[str, bytes], tuple[bool, Any]]
#: The parameters of a query: each name with its values.
Params = Mapping[str, list[str]]


_NO_PARAMS: Params = {}


class _Blocks(Exception):
    """The query can't be answered without blocking."""


class StateRoutes:
    """Serves queries about state.

    Args:
        service: Answers from the state of this worker.
        peers: Finds and asks other workers; None answers only from this worker.
    """

    def __init__(
        self, service: StateService, peers: Peers | None, guard: Guard, clock: Clock, global_row: GlobalRow
    ) -> None:
        self._service, self._peers, self._guard, self._clock = service, peers, guard, clock
        self._global_row = global_row
        self._names, self._counts = service.names, QueryCounts(clock)

    @property
    def figures(self) -> Mapping[str, QueryFigures]:
        """The queries that clients have sent to this worker, by store."""
        return self._counts.figures

    def counted(self, head: Head, answer: Answer) -> None:
        """Counts an answer to a client that is being sent. Always called on the same thread."""
        store = _store_in(head.page)
        if head.is_forwarded or store not in self._names:
            return
        if answer.code in (200, 307, 404):
            self._counts.answered(store)
        elif answer.code in (429, 503):
            reason = answer.body.get("error", "") if isinstance(answer.body, Mapping) else _error_in(answer.body)
            self._counts.refused(store, str(reason))

    def serves(self, page: str) -> bool:
        """Whether a path belongs to these routes."""
        return page.startswith(_PAGES) or page == OPENAPI

    def at_once(self, head: Head) -> Answer | Later | None:
        """Answers a request without blocking; None if it must be answered on a thread."""
        return self._answer(head, blocking=False) if self._service.is_ready or head.page == OPENAPI else None

    def on_thread(self, head: Head) -> Answer | Later:
        """Answers a request. The call may block, for example while another worker answers."""
        return self._answer(head, blocking=True) or _error(500, "the query was not answered")

    def close(self) -> None:
        """Closes the connections to other workers."""
        if self._peers is not None:
            self._peers.close()

    # -- one request -----------------------------------------------------------------------------------------------

    def _answer(self, head: Head, *, blocking: bool) -> Answer | Later | None:
        until = self._clock.monotonic()
        try:
            parts = [unquote(part, errors="strict") for part in head.page.split("/")[1:]]
            params = parse_qs(head.query, True, True, errors="strict", max_num_fields=200) if head.query else _NO_PARAMS
            demand, redirects = demand_of(params), _flag(params, "redirect")
            until += demand.wait_s
        except (UnicodeDecodeError, ValueError) as failure:
            return _error(400, f"The path or the query can't be decoded: {failure}.")
        except QueryWrong as wrong:
            return refusal(wrong)
        if head.page == OPENAPI:
            return Answer(200, DOCUMENT)
        if not self._guard.admits_state(parts[1] if len(parts) > 1 else "", head.authorization):
            return _error(401, "the token is missing or wrong: send a token of state as Authorization: Bearer")
        return self._attempt(_Request(head, parts, params, demand, redirects), until, blocking=blocking)

    def _attempt(self, request: _Request, until: float, *, blocking: bool) -> Answer | Later | None:
        try:
            return self._routed(request, blocking=blocking)
        except _Blocks:
            return None
        except StateAway as away:
            if away.waits and self._clock.monotonic() < until:
                return Later(partial(self._again, request, until))
            return refusal(away)
        except (QueryWrong, StoreUnknown) as wrong:
            return refusal(wrong)

    def _again(self, request: _Request, until: float) -> Answer | Later | None:
        return self._attempt(request, until, blocking=False) if self._service.is_ready else None

    def _routed(self, request: _Request, *, blocking: bool) -> Answer | Later:
        takes = parameters_of(request.parts)
        if takes is not None and not takes.issuperset(request.params):
            raise _not_taken(next(name for name in request.params if name not in takes), takes)
        match request.parts:
            case ["stores"]:
                return Answer(200, {"stores": self._service.stores()})
            case ["stores", store, "keys", key]:
                return self._key(request, self._query(request, store, key), blocking=blocking)
            case ["stores", store, "keys"] if "key" in request.params:
                return self._many(request, store, blocking=blocking)
            case ["stores", store, "keys"]:
                return self._scan(request, store, blocking=blocking)
            case ["stores", store, "windows", key]:
                return self._key(request, self._query(request, store, key, span=_span(request)), blocking=blocking)
            case ["stores", store, "count"]:
                return Answer(200, self._service.count(store))
            case ["tables", table, key]:
                self._service.check_table(table)
                return self._key(request, self._query(request, table, key, StateKeys(one=ROW)), blocking=blocking)
            case ["global-tables", topic, key]:
                return self._global(request, topic, key)
            case _:
                return _error(404, f"no such route; {OPENAPI} has the routes")

    def _query(
        self, request: _Request, store: str, key: str, keys: StateKeys | None = None, span: Span | None = None
    ) -> KeyQuery:
        """Returns the query about one key. Without ``keys`` and ``span``, the parameters select state keys."""
        params = request.params
        made = KeyQuery(
            store,
            key,
            is_base64=_is_base64(params),
            keys=keys or (_state_keys(params) if span is None else ALL_STATE_KEYS),
            span=span,
            partition=_whole(params, "partition", None, least=0, most=PARTITION_MAX),
        )
        if keys is not None:
            return made
        limit = _whole(params, "limit", LIMIT, least=1, most=LIMIT_MAX)
        return replace(made, limit=limit, after=page_key(_text(params, "page") or ""))

    def _key(self, request: _Request, query: KeyQuery, *, blocking: bool) -> Answer | Later:
        is_raw = query.span is None and _flag(request.params, "raw")
        key, places = self._service.candidates(query)
        read: list[Any] = []
        for partition in places:
            try:
                if is_raw:
                    value = self._service.raw(query, key, partition, request.demand)
                    if value.payload is not None:
                        return _raw(value)
                    read.append(value.position.as_dict())
                    continue
                document = self._service.key(query, key, partition, request.demand)
            except NotHere as elsewhere:
                answer = self._elsewhere(request, elsewhere, blocking=blocking, is_sure=len(places) == 1)
                if answer.code != 404 or len(places) == 1 or request.head.is_forwarded:
                    return answer
                document = msgspec.json.decode(bytes(answer.body) if isinstance(answer.body, bytes) else b"{}")
                if "position" not in document:
                    return answer
            if document["found"]:
                return Answer(200, _encode(document))
            read.append(document["position"])
        absent: dict[str, Any] = {"store": query.store, "key": query.key, "found": False}
        if len(read) == 1:
            absent["position"] = read[0]
        return Answer(404, _encode({**absent, "positions": read}))

    def _many(self, request: _Request, store: str, *, blocking: bool) -> Answer | Later:
        keys = request.params["key"]
        if len(keys) > KEYS_MAX:
            raise QueryWrong(
                f"The query has {len(keys)} keys; expected at most {KEYS_MAX}.",
                action="Split the keys into several queries.",
                seen=len(keys),
                expected=KEYS_MAX,
            )
        rows = []
        for key in keys:
            # One answer has all keys, so no single key is redirected.
            left = {name: each for name, each in request.params.items() if name not in ("key", "redirect")}
            one = replace(request, params=left, redirects=False)
            one = replace(one, target=f"/stores/{quote(store, safe='')}/keys/{quote(key, safe='')}")
            answer = self._key(one, self._query(one, store, key), blocking=blocking)
            if not isinstance(answer, Answer) or answer.code not in (200, 404):
                return answer
            rows.append(msgspec.Raw(answer.body if isinstance(answer.body, bytes) else _encode(answer.body)))
        return Answer(200, _encode({"store": store, "rows": rows}))

    def _scan(self, request: _Request, store: str, *, blocking: bool) -> Answer | Later:
        """One page of keys. ``next`` of the answer leads through this partition, and then to the next partition."""
        if not blocking:
            raise _Blocks  # a page may need many reads, and the thread of the connections must not wait for them
        params = request.params
        if "state_key" in params:
            raise QueryWrong(
                "`state_key` is about the keys of the query, and the query has no `key`.",
                action="Add the keys, for example key=a&key=b, or leave `state_key` out.",
            )
        only = _whole(params, "partition", None, least=0, most=PARTITION_MAX)
        first, after = page_of_keys(_text(params, "page") or "", only)
        partition = first if only is None else only
        limit = _whole(params, "limit", LIMIT, least=1, most=LIMIT_MAX)
        query = ScanQuery(store, partition, self._low_high(store, params), limit, after)
        try:
            document = self._service.scan(query, request.demand)
        except NotHere as elsewhere:
            answer = self._elsewhere(request, elsewhere, blocking=blocking)
            if answer.code != 200 or not isinstance(answer.body, bytes):
                return answer
            document = {"after": None, **msgspec.json.decode(answer.body)}
        left = document.pop("after")
        if left is not None:
            document["next"] = f"{partition}.{base64.urlsafe_b64encode(left).decode()}"
        elif "next" not in document and only is None and partition + 1 < self._service.partitions(store):
            document["next"] = f"{partition + 1}."
        return Answer(200, _encode(document))

    def _low_high(self, store: str, params: Params) -> MessageKeys:
        prefix, start, end = (_text(params, name) for name in ("prefix", "start", "end"))
        as_bytes = partial(self._service.key_bytes, store, is_base64=_is_base64(params))
        if prefix is not None and (start is not None or end is not None):
            raise QueryWrong(
                "The query has `prefix` beside `start` or `end`; expected one of both.",
                action="Send `prefix`, or `start` and `end`.",
            )
        if prefix is not None:
            return MessageKeys.beginning_with(as_bytes(prefix) if _is_base64(params) else prefix.encode())
        low, high = b"" if start is None else as_bytes(start), None if end is None else as_bytes(end)
        if high is not None and low > high:
            raise _backwards("start", "end")
        return MessageKeys(low, high)

    def _global(self, request: _Request, topic: str, key: str) -> Answer:
        found, row = self._global_row(topic, self._service.global_key(topic, key, is_base64=_is_base64(request.params)))
        return Answer(200 if found else 404, _encode({"table": topic, "key": key, "found": found, "row": row}))

    # -- other workers ---------------------------------------------------------------------------------------------

    def _elsewhere(self, request: _Request, elsewhere: NotHere, *, blocking: bool, is_sure: bool = True) -> Answer:
        """Answers with the help of the task's owner: forwards the query, or redirects the client to the owner.

        Args:
            is_sure: Whether no other partition can have the key. Otherwise, the client is redirected only to a worker
                that has the key, because that worker looks into one partition.
        """
        if request.head.is_forwarded:
            return _error(MISDIRECTED, f"this worker does not have task {elsewhere}")
        if self._peers is None:
            raise StateAway(f"This worker does not have task {elsewhere}.", task=str(elsewhere))
        if not blocking:
            raise _Blocks
        peer = self._peers.owner_of(elsewhere.subtopology, elsewhere.partition)
        if request.redirects and is_sure:
            return _redirect(peer, request, elsewhere)
        asked_at = self._clock.monotonic()
        answer = self._ask(peer, request, elsewhere)
        if answer.code == MISDIRECTED:
            peer = self._peers.owner_of(elsewhere.subtopology, elsewhere.partition, newer_than=asked_at)
            answer = self._ask(peer, request, elsewhere)
        if answer.code == MISDIRECTED:
            raise StateAway(f"Task {elsewhere} is moving between workers.", task=str(elsewhere))
        return _redirect(peer, request, elsewhere) if request.redirects and answer.code == 200 else answer

    def _ask(self, peer: Peer, request: _Request, elsewhere: NotHere) -> Answer:
        assert self._peers is not None
        return self._peers.ask(peer, request.forwarded(elsewhere), request.demand.wait_s)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request: its head, the decoded parts of its path, its parameters, and what it demands."""

    head: Head
    parts: list[str]
    params: Params
    demand: Demand
    #: Whether the client wants to be redirected to the owner.
    redirects: bool = False
    #: The path of a query about one of several keys.
    target: str = ""

    def forwarded(self, elsewhere: NotHere) -> str:
        """The path and query with which another worker is asked about one partition."""
        params = {name: each for name, each in self.params.items() if name not in ("partition", "redirect")}
        params["partition"] = [str(elsewhere.partition)]
        return f"{self.target or self.head.page}?{urlencode(params, doseq=True)}"


def demand_of(params: Params) -> Demand:
    """Parses the demands of a query. Raises QueryWrong."""
    return Demand(
        parse_after(params.get("after", ())),
        _seconds(params, "max_age", None),
        _seconds(params, "stale_ok", None),
        _seconds(params, "wait", WAIT_S, most=WAIT_MAX_S) or 0.0,
    )


def refusal(failure: HoldfastError) -> Answer:
    """Returns the answer for a query that gets no state."""
    body = {"error": failure.message, "action": failure.action, "fields": failure.as_dict()["fields"]}
    match failure:
        case StateAway(retry_after_s=seconds):
            return Answer(503, body, headers={"Retry-After": str(math.ceil(seconds))})
        case StoreUnknown():
            return Answer(404, body)
        case _:
            return Answer(400, body)


def _error(code: int, why: str, *, retry_after_s: float | None = None) -> Answer:
    headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}
    return Answer(code, {"error": why}, headers=headers)


def _redirect(peer: Peer, request: _Request, elsewhere: NotHere) -> Answer:
    return Answer(307, {"owner": peer.url}, headers={"Location": peer.url + request.forwarded(elsewhere)})


def _raw(value: RawValue) -> Answer:
    position = _encode(value.position.as_dict()).decode()
    return Answer(200, value.payload or b"", value.content_type, {"Holdfast-Position": position})


def _not_taken(name: str, takes: Collection[str]) -> QueryWrong:
    known = ", ".join(sorted(takes)) or "none"
    return QueryWrong(
        f"This route has no parameter {name[:40]!r}; its parameters are {known}.",
        action="Leave it out, or send one of these.",
        seen=name[:40],
    )


def _span(request: _Request) -> Span:
    span = Span(_milliseconds(request.params, "from", 0), _milliseconds(request.params, "to"))
    if span.start_ms > span.end_ms:
        raise _backwards("from", "to")
    return span


def _backwards(first: str, end: str) -> QueryWrong:
    return QueryWrong(f"`{first}` is after `{end}`.", action=f"Send a `{first}` that is before `{end}`.")


def _state_keys(params: Params) -> StateKeys:
    one, end = _text(params, "state_key"), _text(params, "end")
    prefix, start = _text(params, "prefix") or "", _text(params, "start") or ""
    if one is not None and (prefix or start or end is not None):
        raise QueryWrong(
            "The query has `state_key` beside `prefix`, `start` or `end`; expected one of both.",
            action="Send `state_key`, or a range of state keys.",
        )
    if end is not None and start > end:
        raise _backwards("start", "end")
    return StateKeys(one, prefix, start, end)


def _text(params: Params, name: str) -> str | None:
    found = params.get(name)
    if found is not None and len(found) > 1:
        raise QueryWrong(f"`{name}` is given {len(found)} times; expected once.", action=f"Send `{name}` once.")
    return None if found is None else found[0]


def _flag(params: Params, name: str) -> bool:
    text = _text(params, name)
    if text not in (None, "true", "false"):
        raise QueryWrong(f"`{name}` is {text!r}; expected true or false.", action=f"Send {name}=true, or leave it out.")
    return text == "true"


def _is_base64(params: Params) -> bool:
    text = _text(params, "encoding")
    if text not in (None, "text", "base64"):
        raise QueryWrong(f"`encoding` is {text!r}; expected text or base64.", action="Send encoding=base64.")
    return text == "base64"


def _whole(params: Params, name: str, default: Any, *, least: int, most: int) -> Any:
    text = _text(params, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and least <= int(text) <= most):
        raise QueryWrong(
            f"`{name}` is {text[:40]!r}; expected a number from {least} to {most}.",
            action=f"Send `{name}` in this range, and read further entries with `page`.",
            seen=text[:40],
            expected=most,
        )
    return int(text)


def _seconds(params: Params, name: str, default: float | None, *, most: float = SECONDS_MAX) -> float | None:
    text = _text(params, name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= most:
        raise QueryWrong(
            f"`{name}` is {text[:40]!r}; expected seconds from 0 to {most:g}.",
            action=f"Send, for example, {name}=2.",
            seen=text[:40],
        )
    return seconds


def _milliseconds(params: Params, name: str, default: int = EVENT_TIME_END_MS) -> int:
    made: int = _whole(params, name, default, least=0, most=EVENT_TIME_END_MS)
    return made


def _store_in(page: str) -> str:
    """The store, table or global table in the path of a query; empty without one."""
    return unquote(page.split("/", 3)[2]) if page.count("/") > 1 else ""


def _error_in(body: bytes) -> str:
    """The error in the answer of another worker, which is passed on unchanged."""
    with suppress(msgspec.DecodeError):
        return str(msgspec.json.decode(body, type=dict[str, Any]).get("error", ""))
    return ""
