"""Answers queries about one processor's state from what this worker has. ``serving.state`` brings them in by HTTP.

    query ──► key as bytes ──► partitions that can have it ──► this worker's state of the first, the second, …
                                                                   │ not here
                                                                   ▼
                                                              ``Elsewhere``, with the partition to ask for

A query about one key is answered by the first partition that has it. If none has it, the answer says so, with the
position of each partition that was read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from holdfast.processors.engine.formats.serialization import DeserializerChoice
from holdfast.processors.engine.joins.table_rows import ROW
from holdfast.processors.engine.queries.demand import DIGITS_MAX, Demand, Position
from holdfast.processors.engine.queries.entries import (
    Found,
    MessageKeys,
    StateKeys,
    StoreReader,
    raw_value,
)
from holdfast.processors.engine.queries.errors import QueryWrong, StoreUnknown
from holdfast.processors.engine.queries.held_state import Elsewhere, HeldTasks, opened, spec_of
from holdfast.processors.engine.queries.keys import key_from_base64, key_from_text, shown_key
from holdfast.processors.engine.queries.placement import PartitionCounts, is_grouped, partitions_of_key
from holdfast.processors.engine.state.databases.views import NoView
from holdfast.processors.engine.state.time.time_records import Span
from holdfast.processors.engine.topology import StoreSpec

#: Maximum number of entries or keys in one answer, and the number without a request.
LIMIT_MAX, LIMIT = 1_000, 100
ALL_STATE_KEYS, ALL_MESSAGE_KEYS = StateKeys(), MessageKeys()
#: Maximum number of keys in one request.
KEYS_MAX = 100


class NotHere(Exception):
    """Another worker must answer a part of a query: the state of one task. ``partition`` is its number."""

    def __init__(self, subtopology: str, partition: int) -> None:
        super().__init__(f"{subtopology}-{partition}")
        self.subtopology, self.partition = subtopology, partition


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """A query about one message key of one store.

    Attributes:
        key: The key as text, or as base64 if ``is_base64``.
        keys: The state keys that the answer has.
        span: Only windows that overlap these times; None for all entries.
        after: The changelog key at which the page begins; empty for the first page.
        partition: The only partition to look in; None if the key decides.
    """

    store: str
    key: str
    is_base64: bool = False
    keys: StateKeys = ALL_STATE_KEYS
    span: Span | None = None
    limit: int = LIMIT
    after: bytes = b""
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class ScanQuery:
    """A query about the message keys of one partition: those with a prefix, or a range, or all.

    Attributes:
        low, high: The range of keys as bytes; ``high`` is None without an end.
        after: The changelog key at which the page begins; empty for the first page.
    """

    store: str
    partition: int
    keys: MessageKeys = ALL_MESSAGE_KEYS
    limit: int = LIMIT
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class RawValue:
    """The stored bytes of one value, its content type, and where it stands.

    ``payload`` is None if the partition does not have the value.
    """

    payload: bytes | None
    content_type: str
    position: Position


class StateService:
    """Answers queries from the state that one worker has.

    Args:
        held: The worker's tasks.
        counts: The partition counts of the inputs.
        forms: The deserializer of the keys of each input topic.
    """

    def __init__(self, held: HeldTasks, counts: PartitionCounts, forms: Mapping[str, DeserializerChoice]) -> None:
        self._held, self._counts, self._forms = held, counts, forms

    @property
    def is_ready(self) -> bool:
        """Whether a query can be answered without a request to Kafka."""
        return self._counts.is_fresh

    @property
    def names(self) -> frozenset[str]:
        """The names of the processor's stores, tables and global tables."""
        topology = self._held.topology
        return frozenset((*(spec.name for spec in topology.stores), *(spec.name for spec in topology.global_tables)))

    def stores(self) -> list[dict[str, Any]]:
        """Returns the processor's stores, with the partitions that this worker has now."""
        topology, owned = self._held.topology, self._held.owned()
        found = []
        for spec in topology.stores:
            _, sub = spec_of(topology, spec.name)
            own = sorted(task.partition for task in owned if task.subtopology == sub.name and task.running)
            found.append(
                {
                    "store": spec.name,
                    "kind": spec.kind,
                    "inputs": list(spec.inputs),
                    "windows": spec.has_windows,
                    "partitions": self._counts.of(sub.inputs),
                    "here": own,
                }
            )
        return found

    def partitions(self, store: str) -> int:
        """Returns the number of partitions of a store. Raises StoreUnknown or StateAway."""
        _, sub = spec_of(self._held.topology, store)
        return self._counts.of(sub.inputs)

    def check_table(self, store: str) -> None:
        """Raises QueryWrong for a store that is known to be no table, and StoreUnknown."""
        spec, _ = spec_of(self._held.topology, store)
        if spec.has_windows or not spec.follows_input:
            said = "has windows" if spec.has_windows else f"is of the kind {spec.kind}"
            where = "windows" if spec.has_windows else "keys"
            raise QueryWrong(
                f"Store {spec.name} is no table: it {said}.",
                action=f"Ask for its {where}: /stores/{spec.name}/{where}/<key>.",
                store=spec.name,
            )

    def form_of(self, store: str) -> DeserializerChoice:
        """Returns the deserializer of a store's keys, as its input topic declares it. Raises StoreUnknown."""
        spec, _ = spec_of(self._held.topology, store)
        return self._forms.get(spec.inputs[0], "bytes")

    def key_bytes(self, store: str, text: str, *, is_base64: bool) -> bytes:
        """Returns a key of a store as bytes, from its text or base64. Raises StoreUnknown or QueryWrong."""
        form = self.form_of(store)
        return key_from_base64(text) if is_base64 else key_from_text(text, form)

    def global_key(self, topic: str, text: str, *, is_base64: bool) -> bytes:
        """Returns a key of a global table as bytes, from its text or base64. Raises StoreUnknown or QueryWrong."""
        known = [spec.name for spec in self._held.topology.global_tables]
        if topic not in known:
            raise StoreUnknown(
                f"Processor {self._held.topology.processor} has no global table {topic[:80]!r}; its global tables are "
                f"{', '.join(known) or 'none'}.",
                action="Ask for one of these tables.",
                store=topic[:80],
            )
        return key_from_base64(text) if is_base64 else key_from_text(text, self._forms.get(topic, "bytes"))

    def candidates(self, query: KeyQuery) -> tuple[bytes, tuple[int, ...]]:
        """Returns the key's bytes, and the partitions that can have the key, the likeliest first.

        Raises:
            StoreUnknown, QueryWrong, StateAway: The store, the key or the partition is wrong, or Kafka is away.
        """
        spec, sub = spec_of(self._held.topology, query.store)
        key = self.key_bytes(query.store, query.key, is_base64=query.is_base64)
        count = self._counts.of(sub.inputs)
        if query.partition is not None:
            check_partition(query.partition, count)
            return key, (query.partition,)
        return key, partitions_of_key(key, count, grouped=is_grouped(self._held.topology, spec))

    def key(self, query: KeyQuery, key: bytes, partition: int, demand: Demand) -> dict[str, Any]:
        """Returns the entries of one key in one partition, and where they stand.

        ``found`` is False if the partition does not have the key.

        Raises:
            NotHere: Another worker has the partition.
            StateAway: The worker can't answer now.
            QueryWrong: The store has no windows, or the demand is wrong.
        """
        spec, sub = spec_of(self._held.topology, query.store)
        if query.span is not None and not spec.has_windows:
            raise QueryWrong(
                f"Store {spec.name} has no windows; it is of the kind {spec.kind}.",
                action=f"Ask for its keys: /stores/{spec.name}/keys/<key>.",
                store=spec.name,
            )
        try:
            with opened(self._held, query.store, partition, demand) as read:
                reader = StoreReader(read.view, spec)
                if query.span is not None:
                    found = reader.windows(key, query.span, query.limit, query.after)
                else:
                    found = reader.entries(key, query.keys, query.limit, query.after)
                return {
                    "store": spec.name,
                    "partition": partition,
                    **shown_key(key, self.form_of(spec.name)),
                    "found": bool(found),
                    **entries_of(spec, found),
                    **({"next": base64.urlsafe_b64encode(found.after).decode()} if found.after else {}),
                    "position": read.position.as_dict(),
                }
        except Elsewhere:
            raise NotHere(sub.name, partition) from None

    def raw(self, query: KeyQuery, key: bytes, partition: int, demand: Demand) -> RawValue:
        """Returns the stored bytes of one state key.

        Raises the same errors as ``key``.
        """
        spec, sub = spec_of(self._held.topology, query.store)
        if query.keys.one is None:
            raise QueryWrong(
                "`raw` needs one value, and the query has no `state_key`.",
                action="Add, for example, state_key=total.",
            )
        try:
            with opened(self._held, query.store, partition, demand) as read:
                stored = StoreReader(read.view, spec).value(key, query.keys.one)
                payload, content_type = (None, "") if stored is None else raw_value(stored)
                return RawValue(payload, content_type, read.position)
        except Elsewhere:
            raise NotHere(sub.name, partition) from None

    def scan(self, query: ScanQuery, demand: Demand) -> dict[str, Any]:
        """Returns one page of a partition's keys with their entries. Raises the same errors as ``key``."""
        spec, sub = spec_of(self._held.topology, query.store)
        check_partition(query.partition, self._counts.of(sub.inputs))
        form = self.form_of(query.store)
        try:
            with opened(self._held, query.store, query.partition, demand) as read:
                page = StoreReader(read.view, spec).message_keys(query.keys, query.limit, query.after)
                rows = [{**shown_key(key, form), **entries_of(spec, found)} for key, found in page.rows]
                return {
                    "store": spec.name,
                    "partition": query.partition,
                    "rows": rows,
                    "after": page.after,
                    "position": read.position.as_dict(),
                }
        except Elsewhere:
            raise NotHere(sub.name, query.partition) from None

    def count(self, store: str) -> dict[str, Any]:
        """Returns RocksDB's estimate of the records in the tasks of a store that this worker has.

        The estimate covers all stores of these tasks, and the records that Holdfast keeps for itself.
        """
        spec, sub = spec_of(self._held.topology, store)
        places = []
        for task in self._held.owned():
            if task.subtopology == sub.name and task.running and (database := task.store) is not None:
                with suppress(NoView), database.views.open():  # the view keeps the database open
                    records, size = database.estimates()
                    places.append({"partition": task.partition, "records": records, "bytes": size})
        return {"store": spec.name, "estimates": places, "stores": list(sub.stores)}


def entries_of(spec: StoreSpec, found: Found) -> dict[str, Any]:
    """Returns the entries of one key as the fields of an answer: ``row``, ``windows``, or ``state``."""
    if spec.has_windows:
        return {"windows": found.windows}
    if list(found.state) == [ROW] and not found.state_base64:
        return {"row": found.state[ROW]}
    return {"state": found.state, **({"state_base64": found.state_base64} if found.state_base64 else {})}


def check_partition(partition: int, count: int) -> None:
    """Raises QueryWrong if a topic with ``count`` partitions does not have this one."""
    if not 0 <= partition < count:
        raise QueryWrong(
            f"`partition` is {partition}; the store has the partitions 0 to {count - 1}.",
            action="Leave `partition` out, or send a number in this range.",
            seen=partition,
        )


def page_key(text: str) -> bytes:
    """Decodes the changelog key of a page from an answer's ``next``. Raises QueryWrong."""
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as failure:
        raise _no_page(text) from failure


def page_of_keys(text: str, only: int | None = None) -> tuple[int, bytes]:
    """Decodes ``next`` of a page of keys: the partition, and the changelog key at which the next page begins.

    Args:
        only: The partition of the query; None if the query has none.

    Raises:
        QueryWrong: No answer to this query had this text as its ``next``.
    """
    number, dot, after = text.partition(".")
    if not text:
        return 0, b""
    if not (dot and number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX):
        raise _no_page(text)
    if only is not None and int(number) != only:
        raise _no_page(text)
    return int(number), page_key(after)


def _no_page(text: str) -> QueryWrong:
    return QueryWrong(
        f"`page` is {text[:80]!r}, which no answer to this query had as its `next`.",
        action="Send `next` of the last answer unchanged, or leave `page` out.",
        seen=text[:80],
    )
