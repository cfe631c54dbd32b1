"""The check ``proven`` of each processor: whether its deploy tested the running version on the newest messages."""

from collections.abc import Sequence

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.ports import Lifecycle
from holdfast.infra.database.records import ApplyRecord
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.lifecycle.plans.plan import PlanUnreadable, decode
from holdfast.processors.lifecycle.plans.stages import RunProcessor
from holdfast.processors.proof.refusal import judge_proven

PROVEN = "proven"
#: The deploy of the running version is searched among this many newest applies (executed plans) of the processor.
_APPLIES_MAX = 200
#: The recorded name of the stage (step of a deploy) that tests a version on the newest messages.
_STAGE = "prove_version"


def proven_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """Defines the check that the running version was tested on the newest messages before a deploy started it."""
    key = keys.processor_key(definition.name)

    @dg.asset_check(
        asset=key,
        name=PROVEN,
        description="The last messages of each input went through the deployed version before it replaced the former "
        "one. A warning says why they did not.",
    )
    def proven(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        registry = lifecycle.world.registry
        applies = registry.journal.applies(_APPLIES_MAX, processor=definition.name)
        running = registry.releases.working(definition.name)
        passed, sentence = judge_proven(results_of(applies, None if running is None else running.release_id))
        return CheckResult(
            key,
            PROVEN,
            passed,
            sentence,
            "the last messages go through a version before it replaces another one",
            "Nothing, if that is right. Otherwise produce input, change the definition, and run "
            f"`holdfast apply deploy {definition.name}`.",
            warns=True,
        ).result()

    return proven


def results_of(applies: Sequence[ApplyRecord], release: str | None) -> list[str] | None:
    """The results of the tests (stage ``ProveVersion``) in the last finished deploy of a release (deployed version).

    None if no such deploy is recorded. ``applies`` are executed plans, newest first. ``release`` is the id of the
    running release. After a rollback, an earlier deploy of this release counts, because a rollback runs no tests.
    """
    if release is None:
        return []
    for each in applies:
        if each.verb == "deploy" and each.outcome == "done" and release in _started(each):
            return [note.text for note in each.done if note.stage == _STAGE]
    return None


def _started(apply: ApplyRecord) -> set[str | None]:
    try:
        return {stage.release_id for stage in decode(apply.plan).stages if isinstance(stage, RunProcessor)}
    except PlanUnreadable:  # The plan is unreadable, because another version of Holdfast wrote it.
        return set()
