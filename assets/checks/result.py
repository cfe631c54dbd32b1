"""The class of all check results. A result has a sentence with values, the expected value, and the next action.

Invariants:
    - Only this module converts a check result to a Dagster event.
    - A result that passes also has a sentence with the values that were compared.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dagster as dg

from holdfast.assets.ports import Cluster, Lifecycle

Subject = TypeVar("Subject")


def worded(sentence: str, expected: str = "", action: str = "") -> str:
    """The text of a failed check, made of three parts; empty parts are left out."""
    expectation = f" Expected: {expected}." if expected else ""
    todo = f" What to do: {action}" if action else ""
    return f"{sentence}{expectation}{todo}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one asset check, as text parts and severity. Methods convert it to Dagster's events."""

    key: dg.AssetKey
    name: str
    passed: bool
    #: A sentence with the observed values and their units.
    sentence: str
    #: The expected value, without a full stop. It is shown only if the check fails.
    expected: str = ""
    #: The command or edit that repairs the fault; shown only if the check fails.
    action: str = ""
    #: Whether a failed check is only a warning, because processing continues correctly.
    warns: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The text that Dagster shows for the check."""
        return self.sentence if self.passed else worded(self.sentence, self.expected, self.action)

    def result(self) -> dg.AssetCheckResult:
        """This result as the Dagster event that a run of the check yields."""
        return dg.AssetCheckResult(
            asset_key=self.key,
            check_name=self.name,
            passed=self.passed,
            severity=dg.AssetCheckSeverity.WARN if self.warns else dg.AssetCheckSeverity.ERROR,
            description=self.description,
            metadata=self.metadata,
        )

    def evaluation(self, *, blocking: bool = False) -> dg.AssetCheckEvaluation:
        """This result as the Dagster event that a sensor or a job reports without a run of the check."""
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
    """Defines one Dagster step that runs the same check for several assets. A run may select only some of these assets.

    ``results`` is called with the selected subjects (one for each selected asset), in the order of their assets. If a
    ``blocking`` check fails, the assets downstream are not materialised.
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
