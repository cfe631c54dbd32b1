"""Texts of a run that applies a plan: its progress lines, and the failure for a refused plan."""

from collections.abc import Callable

import dagster as dg

from holdfast.assets.checks.result import worded
from holdfast.processors.lifecycle.plans.explanation import explain_markdown
from holdfast.processors.lifecycle.plans.plan import Plan, Refused


def progress_log(log: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a function that logs progress lines, but no line that equals the line logged before it.

    Two lines are also equal if they differ only in their number of seconds.
    """
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        line = text.rsplit(" after ", 1)[0]
        if line != last:
            last = line
            log(text)

    return tell


def refusal(plan: Plan, refused: Refused) -> dg.Failure:
    """The Dagster failure for a refused plan, with the plan's explanation as metadata."""
    return dg.Failure(
        description=worded(refused.sentence, action=refused.action),
        metadata={"explanation": dg.MetadataValue.md(explain_markdown(plan)), "plan": plan.hash},
        allow_retries=False,
    )
