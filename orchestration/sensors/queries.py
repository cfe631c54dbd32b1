"""The part of the sensor ``processor_telemetry`` for queries about stores: their figures and their check."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.queries import queries_result
from holdfast.orchestration.sensors.connectors import OBSERVE_EVERY_S
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.health.queries import is_asked, judge_queries


def query_news(
    processor: str, stores: Sequence[str], statuses: Sequence[ProcessorStatus], before: Any, now: float
) -> tuple[list[dg.AssetObservation | dg.AssetCheckEvaluation], dict[str, Any]]:
    """The observations and check results of a processor's stores that must be reported, and the next memo.

    A store about which nobody has asked has none. A changed verdict is reported at once, except that "unknown" is
    reported from the second tick in a row. Changed figures are reported every five minutes. ``before`` is the memo of
    the last tick: by store, the verdict, the count of queries and the time of the last report, and whether the verdict
    was unknown at the last tick.
    """
    events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
    memo: dict[str, Any] = {}
    for store in stores:
        kept = (before or {}).get(store)
        if kept is None and not is_asked(store, statuses):
            continue
        judged = judge_queries(processor, store, statuses, now)
        count = sum(judged.figures.get(name, 0) for name in ("queries_answered", "queries_refused"))
        verdict, told, at, was_unknown = kept or (None, 0, 0.0, False)
        is_new = [judged.passed, judged.known] != verdict and (judged.known or was_unknown)
        if is_new or (judged.known and count != told and not 0 <= now - at < OBSERVE_EVERY_S):
            events.append(queries_result(processor, store, judged).evaluation())
            if judged.known:
                events.append(dg.AssetObservation(keys.state_key(processor, store), metadata=dict(judged.figures)))
            verdict, told, at = [judged.passed, judged.known], count, now
        memo[store] = [verdict, told, at, not judged.known]
    return events, memo
