"""The part of the sensor ``processor_telemetry`` for sources, sinks and queries: observations and checks.

Invariants:
    - A changed verdict is reported at once. Changed figures with the same verdict are reported every five minutes, or
      less often where there are many connectors, because each event takes 5 KB of Dagster's log.
    - "Unknown" is reported from the second tick in a row, so that a restart of a worker is no failure of its sink.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
import msgspec

from holdfast.assets import keys
from holdfast.assets.checks.connectors import connector_metadata, connector_result, judge_connector, key_of
from holdfast.assets.checks.queries import queries_result
from holdfast.processors.engine.connectors import ConnectorSpec
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.health.queries import is_asked, judge_queries

#: Seconds between two observations of a connector whose verdict did not change, and the seconds that each connector of
#: the installation adds to them beyond the first hundred. So connectors write at most 20 observations a minute.
OBSERVE_EVERY_S, EACH_S = 300.0, 3.0
#: Figures that change at each tick. They alone are no news.
_AGES = frozenset({"seconds_since_success"})


class Reported(msgspec.Struct):
    """What the sensor keeps of one connector from tick to tick.

    ``verdict`` and ``figures`` are those of the last report, at ``at`` (seconds since 1970). ``unknown`` is whether no
    worker told anything of the connector at the last tick.
    """

    verdict: tuple[bool, bool] | None = None
    figures: dict[str, int | float] = {}
    at: float = 0.0
    unknown: bool = False


def observe_every_s(connectors: int) -> float:
    """The seconds between two observations of a connector, in an installation with this number of connectors."""
    return max(OBSERVE_EVERY_S, EACH_S * connectors)


def connector_news(
    processor: str,
    specs: Sequence[ConnectorSpec],
    statuses: Sequence[ProcessorStatus],
    before: Any,
    now: float,
    every_s: float = OBSERVE_EVERY_S,
) -> tuple[list[dg.AssetObservation | dg.AssetCheckEvaluation], dict[str, Any]]:
    """The observations and check results of a processor's connectors that must be reported, and the next memo.

    ``before`` is the memo that the last tick returned. ``now`` is in seconds since 1970. ``every_s`` is the result of
    ``observe_every_s``.
    """
    events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
    memo: dict[str, Any] = {}
    for spec in specs:
        place = f"{spec.name}_{spec.role}"
        kept = _kept((before or {}).get(place))
        judged = judge_connector(processor, spec, statuses, now)
        figures = {name: value for name, value in judged.figures.items() if name not in _AGES}
        verdict = judged.passed, judged.known
        waits = not judged.known and not kept.unknown and kept.verdict is not None
        is_old = now < kept.at or now - kept.at >= every_s
        if not waits and (verdict != kept.verdict or (is_old and figures != kept.figures)):
            # The text of a failed check has figures, too, so it is reported with them.
            if verdict != kept.verdict or not judged.passed:
                events.append(connector_result(processor, spec, judged).evaluation())
            if judged.figures:
                events.append(dg.AssetObservation(key_of(processor, spec), metadata=connector_metadata(judged)))
            kept = Reported(verdict, figures, now)
        kept.unknown = not judged.known
        memo[place] = msgspec.to_builtins(kept)
    return events, memo


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


def _kept(told: Any) -> Reported:
    """The memo of a connector; an empty one if another version of Holdfast wrote it."""
    try:
        return msgspec.convert(told or {}, Reported)
    except msgspec.ValidationError:
        return Reported()
