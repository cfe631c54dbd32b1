"""``StateClient``: reads a processor's state from its workers, for programs with threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from holdfast.processors.client import http, rules
from holdfast.processors.client.answers import StateAnswer, answer_of, check_windows, rows_of, value_of
from holdfast.processors.client.conversation import Ask, Effect, Look, Pause, about
from holdfast.processors.client.questions import Demands, Key, Question, about_global_row, about_key, about_page
from holdfast.processors.client.replies import Lost, Reply, Settled

if TYPE_CHECKING:
    import ssl

    import httpx


class StateClient:
    """Reads a processor's state from its workers. Threads may share one client.

    Any worker answers for any key. The client remembers which worker owns a key, asks this worker first, and keeps its
    connections open. If the owner moves, restores or ends, the client asks again, until ``timeout_s`` is over.

    Args:
        processor: The consumer group. Its workers on this machine are found by their endpoint files, which only their
            user can read.
        urls: The addresses of workers, instead of those of this machine, for example ``["http://10.0.0.5:8080"]``. A
            second address is useful while the first worker restarts.
        token: The token of state that these workers accept; needed with ``urls``.
        home: The home folder of the workers on this machine; None uses the settings.
        timeout_s: Maximum seconds of one query with all its retries.
        tls: The TLS context for ``https`` addresses; None accepts the certificates of well-known authorities.

    Raises:
        StateClientWrong: The arguments contradict each other.
    """

    def __init__(
        self,
        processor: str = "",
        *,
        urls: Sequence[str] | None = None,
        token: str | None = None,
        home: str | Path | None = None,
        timeout_s: float = rules.TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._known = rules.known_to(processor, urls, token, home, timeout_s)
        self._tls, self._lock = tls, Lock()
        self._http: httpx.Client | None = None
        self._closed = False

    def get(
        self,
        store: str,
        key: Key,
        state_key: str | None = None,
        *,
        default: Any = None,
        **demands: Unpack[Demands],
    ) -> Any:
        """Returns one value of a key, or all its values.

        Args:
            store: The store or table.
            key: The message key: text, bytes, or a number for stores with such keys.
            state_key: The name of the value in the key's state. Without it, the method returns the values by name, the
                windows of a store with windows, or the row of a table.
            default: What is returned if the key or the value is not there.
            **demands: ``after``, ``max_age``, ``stale_ok`` and ``wait``, as for ``key``.

        Raises:
            StateAway: No worker could answer within ``timeout_s``.
            QueryWrong: The query is wrong, or the key has more entries than one answer.
            StoreUnknown: The processor has no such store.
            StateRefused: The token is wrong.
        """
        question = rules.key_question(store, key, state_key, None, None, demands)
        settled = self._ask_about(question)
        return value_of(answer_of(settled.document, key, settled.sent_at), state_key, default)

    def key(
        self,
        store: str,
        key: Key,
        state_key: str | None = None,
        *,
        prefix: str | None = None,
        page: str | None = None,
        **demands: Unpack[Demands],
    ) -> StateAnswer:
        """Returns the state of one key, and the commit that it stands for.

        Args:
            store: The store or table.
            key: The message key: text, bytes, or a number for stores with such keys.
            state_key: Only this value of the key's state.
            prefix: Only the values whose names begin with this text.
            page: ``next`` of an earlier answer, for the further entries.
            **demands: ``after``: positions that the answer must have reached, which are an earlier answer, or tuples of
                (topic, partition, next offset). ``max_age``: maximum seconds since the state was the newest.
                ``stale_ok``: seconds by which the answer of a standby may be behind. ``wait``: seconds that a worker
                may wait until the demands are met.

        Raises:
            StateAway: No worker could answer within ``timeout_s``.
            QueryWrong: The query is wrong.
            StoreUnknown: The processor has no such store.
            StateRefused: The token is wrong.
        """
        settled = self._ask_about(rules.key_question(store, key, state_key, prefix, page, demands))
        return answer_of(settled.document, key, settled.sent_at)

    def windows(
        self,
        store: str,
        key: Key,
        start: int | datetime | None = None,
        end: int | datetime | None = None,
        **demands: Unpack[Demands],
    ) -> StateAnswer:
        """Returns the windows of one key that overlap the time from ``start`` to ``end``, oldest first.

        Args:
            store: The store with windows.
            key: The message key.
            start: Milliseconds since 1970, or a ``datetime`` with a time zone; None has no beginning.
            end: As ``start``; None has no end.
            **demands: As for ``key``.

        Raises:
            StateAway: No worker could answer within ``timeout_s``.
            QueryWrong: The query is wrong, the store has no windows, or 1,000 or more windows overlap.
            StoreUnknown: The processor has no such store.
            StateRefused: The token is wrong.
        """
        settled = self._ask_about(rules.windows_question(store, key, start, end, demands))
        return check_windows(answer_of(settled.document, key, settled.sent_at))

    def table(self, table: str, key: Key, **demands: Unpack[Demands]) -> StateAnswer:
        """Returns the row of a table. The ``row`` of the answer is None if the table does not have the key.

        Args:
            table: The name of the table's store.
            key: The message key.
            **demands: As for ``key``.

        Raises:
            StateAway, QueryWrong, StoreUnknown, StateRefused: As for ``key``.
        """
        settled = self._ask_about(about_key("tables", table, key, (), demands))
        return answer_of(settled.document, key, settled.sent_at)

    def global_row(self, topic: str, key: Key) -> StateAnswer:
        """Returns the row of a global table, as the asked worker has it. The answer has no position.

        Args:
            topic: The topic of the global table.
            key: The message key.

        Raises:
            StateAway, QueryWrong, StoreUnknown, StateRefused: As for ``key``.
        """
        settled = self._ask_about(about_global_row(topic, key))
        return answer_of(settled.document, key, settled.sent_at)

    def keys(
        self,
        store: str,
        *,
        prefix: Key | None = None,
        start: Key | None = None,
        end: Key | None = None,
        page_size: int = 100,
        **demands: Unpack[Demands],
    ) -> Iterator[StateAnswer]:
        """Iterates over the keys of a store with their states, through all pages and partitions.

        Each page is one commit of one partition. A page is read when the iteration needs it, so two pages can stand
        for different commits. Within a partition, keys come in the order of their length, then of their bytes.

        Args:
            store: The store.
            prefix: Only keys that begin with this text or these bytes.
            start: Only keys from this one on; not together with ``prefix``.
            end: Only keys before this one.
            page_size: Maximum number of keys in one page, up to 1,000.
            **demands: As for ``key``.

        Raises:
            StateAway, QueryWrong, StoreUnknown, StateRefused: As for ``key``.
        """
        bounds, page = {"prefix": prefix, "start": start, "end": end}, ""
        while True:
            settled = self._ask_about(about_page(store, bounds, page, page_size, demands))
            yield from rows_of(settled.document, settled.sent_at)
            page = settled.document.get("next") or ""
            if not page:
                return

    def many(self, store: str, keys: Iterable[Key], **demands: Unpack[Demands]) -> list[StateAnswer]:
        """Returns the states of many keys, in the order of ``keys``, with few requests.

        Args:
            store: The store.
            keys: The message keys.
            **demands: As for ``key``.

        Raises:
            StateAway, QueryWrong, StoreUnknown, StateRefused: As for ``key``.
        """
        wanted = list(keys)
        found: dict[int, StateAnswer] = {}
        for batch in rules.batches(self._known, store, wanted, demands):
            settled = self._ask_about(batch.question)
            found |= rules.rows_of_batch(self._known, batch, wanted, settled)
        return [found[at] for at in range(len(wanted))]

    def stores(self) -> list[dict[str, Any]]:
        """Returns the processor's stores: ``store``, ``kind``, ``inputs``, ``windows`` and ``partitions``.

        ``here`` has the partitions that the asked worker owns.

        Raises:
            StateAway, StateRefused: As for ``key``.
        """
        return rules.stores_of(self._ask_about(Question("/stores")))

    def close(self) -> None:
        """Closes the connections. The client can't be used afterwards."""
        self._closed = True
        if self._http is not None:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- effects ---------------------------------------------------------------------------------------------------

    def _ask_about(self, question: Question) -> Settled:
        rules.check_open(closed=self._closed)
        conversation = about(question, self._known)
        heard: Reply | Lost | None = None
        try:
            while True:
                heard = self._do(conversation.send(heard))
        except StopIteration as ended:
            settled: Settled = ended.value
            return settled

    def _do(self, effect: Effect) -> Reply | Lost | None:
        match effect:
            case Ask():
                return self._send(effect)
            case Pause(seconds):
                time.sleep(seconds)
            case Look():
                self._known.workers.read(self._known.clock.monotonic())
        return None

    def _send(self, ask: Ask) -> Reply | Lost:
        import httpx

        with self._lock:
            if self._http is None:
                self._http = httpx.Client(**http.options(self._tls, has_tls=self._known.workers.has_tls))
            client = self._http
        received = http.Received(ask, self._known.clock)
        try:
            with client.stream(**http.request_of(ask)) as response:
                for part in response.iter_raw():
                    received.add(part)
        except (httpx.HTTPError, httpx.InvalidURL) as failure:
            return http.lost_of(failure)
        return received.reply(response)
