"""What a client has learned from answers: the partition of a key, and the owner of a partition.

All of it is a hint for the next question. Each worker answers or redirects a question that it does not own, so an old
hint costs one more request and never changes an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from holdfast.processors.client.questions import Question
from holdfast.processors.engine.queries.demand import Position

#: Maximum number of keys, of owners, and of URLs that are remembered; the oldest ones are forgotten.
REMEMBERED_MAX = 10_000
#: Seconds for which no question is redirected to a worker that did not answer.
DOWN_S = 5.0

_K = TypeVar("_K")
_V = TypeVar("_V")


class Owner(NamedTuple):
    """The worker that owns a partition: its URL, and the name that its answers have."""

    url: str
    name: str


class _Recent(OrderedDict[_K, _V], Generic[_K, _V]):
    """A dict with at most ``REMEMBERED_MAX`` entries."""

    def put(self, key: _K, value: _V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > REMEMBERED_MAX:
            self.popitem(last=False)


class KnownOwners:
    """Remembers owners. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._partitions: _Recent[tuple[str, str], int] = _Recent()
        self._owners: _Recent[tuple[str, int], Owner] = _Recent()
        self._urls: _Recent[str, str] = _Recent()
        self._down: _Recent[str, float] = _Recent()
        self._scattered: _Recent[str, None] = _Recent()

    def of(self, question: Question) -> Owner | None:
        """Returns the owner that probably answers a question."""
        if question.prefers is not None:
            return Owner(question.prefers, "")
        return self.find(question.store, question.key, question.partition)

    def find(self, store: str, key: str | None, partition: int | None = None) -> Owner | None:
        """Returns the probable owner of a key or of a partition."""
        with self._lock:
            at = partition if key is None else self._partitions.get((store, key))
            return None if at is None else self._owners.get((store, at))

    def learn(self, question: Question, position: Position, url: str | None, by_name: str | None) -> None:
        """Learns from an answer.

        Args:
            url: The URL of the worker that has certainly answered itself; None if another worker may have answered.
            by_name: The URL of the worker with the answer's name, as the endpoint files say.
        """
        with self._lock:
            if question.key is not None:
                self._partitions.put((question.store, question.key), position.partition)
            if position.source != "owner":
                return
            if url is not None:
                self._urls.put(position.worker, url)
            place = question.store, position.partition
            found = url or self._urls.get(position.worker) or by_name
            if found is not None:
                self._owners.put(place, Owner(found, position.worker))
            else:
                self._owners.pop(place, None)

    def learn_key(self, store: str, key: str, position: Position, by_name: str | None) -> None:
        """Learns from one row of an answer about many keys."""
        self.learn(Question("", store=store, key=key), position, None, by_name)

    def forget(self, question: Question, url: str) -> None:
        """Forgets that this worker owns what the question is about."""
        with self._lock:
            key = (question.store, question.key or "")
            at = question.partition if question.key is None else self._partitions.get(key)
            if at is not None and (owner := self._owners.get((question.store, at))) and owner.url == url:
                del self._owners[question.store, at]

    def is_down(self, url: str, now: float) -> bool:
        """Whether the worker did not answer lately."""
        with self._lock:
            return now - self._down.get(url, float("-inf")) < DOWN_S

    def down(self, url: str, now: float) -> None:
        """Forgets all that this worker owned, because it did not answer."""
        with self._lock:
            self._down.put(url, now)
            for place in [place for place, owner in self._owners.items() if owner.url == url]:
                del self._owners[place]
            for name in [name for name, each in self._urls.items() if each == url]:
                del self._urls[name]

    def up(self, url: str) -> None:
        """Notes that the worker answers."""
        with self._lock:
            self._down.pop(url, None)

    def scatters(self, store: str) -> bool:
        """Whether a redirect of this store has led to a partition without the key."""
        with self._lock:
            return store in self._scattered

    def scattered(self, store: str) -> None:
        """Notes that redirects of this store mislead, so that workers forward its questions instead."""
        with self._lock:
            self._scattered.put(store, None)
