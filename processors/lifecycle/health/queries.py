"""Judges whether the workers of a processor answer the queries about a store.

Invariants:
    - The judgement is pure: it depends only on the statuses of the workers and the time.
    - Unknown is never green: without an answer of a worker, the judgement fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.processors.engine.queries.figures import LATELY_MINUTES, QueryFigures
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.health.connectors import Judged

#: Refused queries of the last minutes are told if there are this many of them, and if they are this part of all.
REFUSED_MIN, REFUSED_PART = 5, 0.1


def judge_queries(processor: str, store: str, statuses: Sequence[ProcessorStatus], now: float) -> Judged:
    """Judges the queries about one store in the last minutes. ``now`` is in seconds since 1970."""
    if not statuses:
        sentence = "No worker answers, so nobody knows."
        return Judged(False, sentence, f"See `holdfast status {processor}`.", warns=True, known=False)
    seen = [each.queries[store] for each in statuses if store in each.queries]
    answered, refused = sum(each.lately_answered for each in seen), sum(each.lately_refused for each in seen)
    figures, texts = _figures(seen, now), dict[str, str]()
    newest = max(seen, key=lambda each: each.refused_at or 0.0, default=QueryFigures())
    if newest.refusal:
        texts["last_refusal"] = newest.refusal
    said = f"In the last {LATELY_MINUTES} minutes, {answered:,} queries were answered and {refused:,} refused"
    if refused >= REFUSED_MIN and refused > REFUSED_PART * (answered + refused):
        action = f"`holdfast status {processor}` shows the tasks that move or restore; they answer when they run."
        sentence = f"{said}; the last one: {newest.refusal}"
        return Judged(False, sentence, action, warns=True, figures=figures, texts=texts)
    return Judged(True, f"{said}.", figures=figures, texts=texts)


def is_asked(store: str, statuses: Sequence[ProcessorStatus]) -> bool:
    """Whether a query has named the store since one of the workers started."""
    return any(store in each.queries for each in statuses)


def _figures(seen: Sequence[QueryFigures], now: float) -> dict[str, int | float]:
    facts: dict[str, int | float] = {
        "queries_answered": sum(each.answered for each in seen),
        "queries_refused": sum(each.refused for each in seen),
        "queries_per_minute": round(
            sum(each.lately_answered + each.lately_refused for each in seen) / LATELY_MINUTES, 1
        ),
    }
    answered_at = max((each.answered_at for each in seen if each.answered_at is not None), default=None)
    if answered_at is not None:
        facts["seconds_since_answer"] = round(max(0.0, now - answered_at), 1)
    return facts
