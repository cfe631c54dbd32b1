"""The check ``proven`` of each processor: what came of the proof of the version that runs."""

from collections.abc import Sequence

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.check_result import CheckResult
from holdfast.assets.ports import Lifecycle
from holdfast.infra.database.records import ApplyRecord
from holdfast.processors.lifecycle.deploy.proof import judge_proven
from holdfast.processors.registration import ProcessorDefinition

PROVEN = "proven"
#: Newest applies among which the last deploy is looked for.
_APPLIES_MAX = 50
#: Stage of an apply, as the journal names it.
_STAGE = "prove_version"


def proven_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """Whether the last messages went through the deployed version before it replaced the former one."""
    key = keys.processor_key(definition.name)

    @dg.asset_check(
        asset=key,
        name=PROVEN,
        description="The last messages of each input went through the deployed version before it replaced the former "
        "one. A warning says why they did not.",
    )
    def proven(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        applies = lifecycle.world.registry.journal.applies(_APPLIES_MAX, processor=definition.name)
        passed, sentence = judge_proven(results_of(applies))
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


def results_of(applies: Sequence[ApplyRecord]) -> list[str]:
    """The result of the proof in the last deploy that is done, if it had one; ``applies`` are newest first."""
    last = next((each for each in applies if each.verb == "deploy" and each.outcome == "done"), None)
    return [] if last is None else [note.text for note in last.done if note.stage == _STAGE]
