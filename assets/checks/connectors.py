"""External assets for sources and sinks, with their checks `source_alive` and `sink_writes`.

    connectors/<p>/<name>_source ─► topics/<t> ─► … ─► processors/<p>/<p>_processor ─► connectors/<p>/<name>_sink

Invariants:
    - Dagster never materialises a source or sink, because a worker runs it.
    - ``lifecycle.health.connectors`` decides the checks. The telemetry sensor reports them, and they can run on demand.
    - Metadata has no secret: the place of a connector is masked where it is declared.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult, check_of_each
from holdfast.assets.pages.metadata import docs
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.connectors import ConnectorSpec
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.health.connectors import Judged, judge_sink, judge_source
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now

SOURCE_ALIVE, SINK_WRITES = "source_alive", "sink_writes"
#: The descriptions of the checks.
SAYS = {
    SOURCE_ALIVE: "A worker runs the source, which has reached its system within the time that it promised. A failure "
    "has the last error and the action. The telemetry sensor updates this check.",
    SINK_WRITES: "The system behind the sink took the last results, and refused none in the last hour. A failure has "
    "the last error and the action. The telemetry sensor updates this check.",
}
_EXPECTED = {
    SOURCE_ALIVE: "a source that reaches its system",
    SINK_WRITES: "a system that takes all results",
}
#: The page of the docs for each role.
_PAGES = {"source": "sources.md", "sink": "sinks.md"}


def key_of(processor: str, spec: ConnectorSpec) -> dg.AssetKey:
    """The key of the asset of a source or sink."""
    return keys.connector_key(processor, spec.role, spec.name)


def connector_assets(definition: ProcessorDefinition) -> list[dg.AssetSpec]:
    """One external asset for each source and sink of a processor. A sink is downstream of the processor."""
    return [
        dg.AssetSpec(
            key_of(definition.name, spec),
            deps=[keys.processor_key(definition.name)] if spec.role == "sink" else [],
            description=_description(definition.name, spec),
            group_name=keys.safe(definition.name),
            kinds={spec.system.kind or "python"},
            owners=list(definition.owners),
            tags=keys.tags(keys.CONNECTORS),
            metadata={
                "connector": spec.name,
                "role": spec.role,
                "type": spec.kind,
                "system": spec.system.kind or "unknown",
                "place": spec.system.place or "unknown",
                "topics": list(spec.topics),
                **docs(_PAGES[spec.role]),
            },
        )
        for spec in definition.topology.connectors
    ]


def connector_checks(definition: ProcessorDefinition) -> list[dg.AssetChecksDefinition]:
    """The checks of a processor's sources and sinks; empty for a processor without any."""

    def results(
        context: dg.AssetCheckExecutionContext, chosen: Sequence[ConnectorSpec], cluster: Cluster, lifecycle: Lifecycle
    ) -> Iterator[CheckResult]:
        statuses, now = statuses_now(definition.name, lifecycle)
        for spec in chosen:
            yield connector_result(definition.name, spec, judge_connector(definition.name, spec, statuses, now))

    made = []
    for role, check in (("source", SOURCE_ALIVE), ("sink", SINK_WRITES)):
        those = {key_of(definition.name, each): each for each in definition.topology.connectors if each.role == role}
        if those:
            step = f"{keys.safe(definition.name)}_{role}_checks"
            made.append(check_of_each(step, check, SAYS[check], those, results))
    return made


def statuses_now(processor: str, lifecycle: Lifecycle) -> tuple[list[ProcessorStatus], float]:
    """The statuses of the workers that answer, and the time in seconds since 1970."""
    seen = processor_now(processor, lifecycle.world, Limits(), patience_s=2.0).observations
    return [each.status for each in seen.values() if each.status is not None], lifecycle.world.clock().timestamp()


def judge_connector(processor: str, spec: ConnectorSpec, statuses: Sequence[ProcessorStatus], now: float) -> Judged:
    """The verdict about one source or sink; ``now`` is in seconds since 1970."""
    return (judge_source if spec.role == "source" else judge_sink)(processor, spec, statuses, now)


def connector_result(processor: str, spec: ConnectorSpec, judged: Judged) -> CheckResult:
    """Converts a verdict about a source or sink to the result of its check."""
    check = SOURCE_ALIVE if spec.role == "source" else SINK_WRITES
    return CheckResult(
        key_of(processor, spec),
        check,
        judged.passed,
        judged.sentence,
        _EXPECTED[check],
        judged.action,
        warns=judged.warns,
        metadata=connector_metadata(judged),
    )


def connector_metadata(judged: Judged) -> Mapping[str, Any]:
    """The figures and texts of a verdict, as metadata of checks and observations."""
    return {**judged.figures, **judged.texts}


def _description(processor: str, spec: ConnectorSpec) -> str:
    of = f" of {spec.system.place}" if spec.system.place else ""
    topics = ", ".join(spec.topics)
    if spec.role == "source":
        return f"Source {spec.name} of {processor} ({spec.kind}): sends the data{of} to topic {topics}."
    to = f" to {spec.system.place}" if spec.system.place else ""
    return f"Sink {spec.name} of {processor} ({spec.kind}): writes results of {topics}{to}."
