"""The one form of every check's text: what is the case, with values; what was expected; the next action.

Invariants:
    - A check of this package becomes a Dagster event here and nowhere else.
    - A result that passes has a sentence, too: it names the values that were compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg


def worded(sentence: str, expected: str = "", action: str = "") -> str:
    """The text of one failure; empty parts are left out."""
    expectation = f" Expected: {expected}." if expected else ""
    todo = f" What to do: {action}" if action else ""
    return f"{sentence}{expectation}{todo}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one asset check.

    Args:
        key: The asset.
        name: The check's name.
        passed: The outcome.
        sentence: What is the case, with values and units.
        expected: What was expected instead, without a full stop; shown on failure only.
        action: The command or edit that repairs it; shown on failure only.
        warns: A failure is a warning: processing continues correctly.
        metadata: Figures, tables and pictures for the check's page.
    """

    key: dg.AssetKey
    name: str
    passed: bool
    sentence: str
    expected: str = ""
    action: str = ""
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
            passed=result.passed,
            severity=result.severity,
            description=result.description,
            metadata=result.metadata,
            blocking=blocking,
        )
