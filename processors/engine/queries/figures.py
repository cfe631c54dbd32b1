"""Counts the queries about a worker's state, by store: those that were answered, and those that were refused.

A query is refused if no worker can answer it now (status 503), or if a worker gets more queries than its limit allows
(429). A query that is wrong is not counted, because it says nothing about the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.infra.clock import Clock

#: Minutes of the recent counts. The present minute is one of them.
LATELY_MINUTES = 5
#: Maximum characters of the reason of a refusal.
_REASON_MAX = 300


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """The queries about one store, since the worker's start. Times are in seconds since 1970.

    Attributes:
        answered: The number of answers, also those that say that a key is not there.
        refused: The number of queries that were refused.
        answered_at: The time of the last answer; None before the first one.
        refused_at: The time of the last refusal; None before the first one.
        refusal: The reason of the last refusal; empty without one.
        lately_answered: The number of answers in the last ``LATELY_MINUTES`` minutes.
        lately_refused: The number of refusals in these minutes.
    """

    answered: int = 0
    refused: int = 0
    answered_at: float | None = None
    refused_at: float | None = None
    refusal: str = ""
    lately_answered: int = 0
    lately_refused: int = 0


class _Counts:
    def __init__(self) -> None:
        self.answered = self.refused = 0
        self.answered_at: float | None = None
        self.refused_at: float | None = None
        self.refusal = ""
        #: Minute since 1970, answers, refusals; the present minute is the last one.
        self.minutes: deque[list[int]] = deque(maxlen=LATELY_MINUTES)

    def minute(self, now: float) -> list[int]:
        number = int(now // 60)
        if not self.minutes or self.minutes[-1][0] != number:
            self.minutes.append([number, 0, 0])
        return self.minutes[-1]


class QueryCounts:
    """The counts of one worker. One thread counts; any thread may read ``figures``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stores: dict[str, _Counts] = {}

    def answered(self, store: str) -> None:
        """Counts an answer."""
        counts, now = self._stores.setdefault(store, _Counts()), self._clock.time()
        counts.answered, counts.answered_at = counts.answered + 1, now
        counts.minute(now)[1] += 1

    def refused(self, store: str, reason: str) -> None:
        """Counts a refusal."""
        counts, now = self._stores.setdefault(store, _Counts()), self._clock.time()
        counts.refused, counts.refused_at, counts.refusal = counts.refused + 1, now, reason[:_REASON_MAX]
        counts.minute(now)[2] += 1

    @property
    def figures(self) -> Mapping[str, QueryFigures]:
        """The figures of each store that a query has named."""
        last = int(self._clock.time() // 60)
        return {store: _figures(counts, last) for store, counts in list(self._stores.items())}


def _figures(counts: _Counts, last: int) -> QueryFigures:
    lately = [each for each in list(counts.minutes) if last - LATELY_MINUTES < each[0] <= last]
    return QueryFigures(
        counts.answered,
        counts.refused,
        counts.answered_at,
        counts.refused_at,
        counts.refusal,
        sum(each[1] for each in lately),
        sum(each[2] for each in lately),
    )
