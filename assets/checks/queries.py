"""The check ``queries_answered`` of each store; the telemetry sensor reports it without a run."""

from collections.abc import Iterator, Sequence

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.connectors import statuses_now
from holdfast.assets.checks.result import CheckResult, check_of_each
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.lifecycle.health.connectors import Judged
from holdfast.processors.lifecycle.health.queries import judge_queries

QUERIES_ANSWERED = "queries_answered"
#: The description of the check.
SAYS = (
    "The workers answer queries about the store: of those of the last five minutes, few were refused. A warning has "
    "the counts and the last reason. The telemetry sensor updates this check, as soon as a query has come."
)


def query_checks(definition: ProcessorDefinition) -> list[dg.AssetChecksDefinition]:
    """The check of each store of a processor; empty for a processor without stores."""

    def results(
        context: dg.AssetCheckExecutionContext, chosen: Sequence[str], cluster: Cluster, lifecycle: Lifecycle
    ) -> Iterator[CheckResult]:
        statuses, now = statuses_now(definition.name, lifecycle)
        for store in chosen:
            yield queries_result(definition.name, store, judge_queries(definition.name, store, statuses, now))

    those = {keys.state_key(definition.name, spec.name): spec.name for spec in definition.topology.stores}
    step = f"{keys.safe(definition.name)}_query_checks"
    return [check_of_each(step, QUERIES_ANSWERED, SAYS, those, results)] if those else []


def queries_result(processor: str, store: str, judged: Judged) -> CheckResult:
    """Converts a verdict about the queries of a store to the result of the check."""
    return CheckResult(
        keys.state_key(processor, store),
        QUERIES_ANSWERED,
        judged.passed,
        judged.sentence,
        "queries that are answered",
        judged.action,
        warns=judged.warns,
        metadata={**judged.figures, **judged.texts},
    )
