"""The common form of every check's text: what happened, with values; what was expected; the next action.

Invariants:
    - A check of this package becomes a Dagster event here and nowhere else.
    - A result that passes has a sentence, too: it names the values that were compared.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dagster as dg

from holdfast.assets.ports import Cluster, Lifecycle

Subject = TypeVar("Subject")


def worded(sentence: str, expected: str = "", action: str = "") -> str:
    """The text of one failure; empty parts are left out."""
    expectation = f" Expected: {expected}." if expected else ""
    todo = f" What to do: {action}" if action else ""
    return f"{sentence}{expectation}{todo}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one asset check."""

    key: dg.AssetKey
    name: str
    passed: bool
    #: What is the case, with values and units.
    sentence: str
    #: What was expected instead, without a full stop; shown on failure only.
    expected: str = ""
    #: The command or edit that repairs it; shown on failure only.
    action: str = ""
    #: Whether a failure is a warning: processing continues correctly.
    warns: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The text on the check's page."""
        return self.sentence if self.passed else worded(self.sentence, self.expected, self.action)

    def result(self) -> dg.AssetCheckResult:
        """The event that a run yields."""
        return dg.AssetCheckResult(
            asset_key=self.key,
            check_name=self.name,
            passed=self.passed,
            severity=dg.AssetCheckSeverity.WARN if self.warns else dg.AssetCheckSeverity.ERROR,
            description=self.description,
            metadata=self.metadata,
        )

    def evaluation(self, *, blocking: bool = False) -> dg.AssetCheckEvaluation:
        """The event that a sensor or a job reports outside of the asset's own run."""
        result = self.result()
        return dg.AssetCheckEvaluation(
            asset_key=self.key,
            check_name=self.name,
            passed=self.passed,
            severity=result.severity,
            description=self.description,
            metadata=result.metadata,
            blocking=blocking,
        )


def check_of_each(
    step: str,
    check: str,
    description: str,
    subjects: Mapping[dg.AssetKey, Subject],
    results: Callable[[dg.AssetCheckExecutionContext, Sequence[Subject], Cluster, Lifecycle], Iterable[CheckResult]],
    *,
    blocking: bool = False,
) -> dg.AssetChecksDefinition:
    """One step that runs the same check for several assets, or for the assets that a run selects.

    ``results`` gets the selected subjects in the order of their assets. A failure of a ``blocking`` check stops the
    assets downstream.
    """
    specs = [dg.AssetCheckSpec(check, asset=key, blocking=blocking, description=description) for key in subjects]

    @dg.multi_asset_check(name=step, specs=specs, can_subset=True)
    def check_each(
        context: dg.AssetCheckExecutionContext,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> Iterable[dg.AssetCheckResult]:
        selected = [subjects[key.asset_key] for key in sorted(context.selected_asset_check_keys)]
        for found in results(context, selected, cluster, lifecycle):
            yield found.result()

    return check_each
