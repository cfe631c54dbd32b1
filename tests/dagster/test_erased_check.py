"""The check that erased keys stay gone, on a real broker, worker and registry: a late message turns it red."""

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.assets.checks.erased import STAY_GONE
from holdfast.orchestration.definitions import build_definitions
from holdfast.processors.lifecycle.plans.requests import Erase, Stop
from tests.parts.operated import Operated


@pytest.mark.thorough
def test_a_late_message_of_an_erased_key_turns_the_check_red(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=4, each=2)
    operated.processed(8)
    definitions = build_definitions(operated.settings)
    key = dg.AssetCheckKey(keys.processor_key(operated.group), STAY_GONE)
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=set(), asset_check_selection={key}
    )

    def told() -> dg.AssetCheckEvaluation:
        with dg.DagsterInstance.ephemeral() as instance:
            (found,) = job.execute_in_process(instance=instance).get_asset_check_evaluations()
        return found

    assert told().description == f"No key of {operated.group} was erased."
    operated.do(Erase(operated.group, "key-1"))
    assert told().passed
    assert told().description == "No erased key has state; 1 erased."
    operated.feed(keys=4, each=1)
    operated.processed(12)
    red = told()
    assert (red.passed, red.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "1 erased key has state again, 1 entries" in (red.description or "")
    assert "key-1" not in str(red)
    operated.do(Erase(operated.group, "key-1"))
    assert told().passed, "the action of the failure repairs it"
    operated.do(Stop(operated.group))
    unknown = told()
    assert (unknown.passed, unknown.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "nobody knows" in (unknown.description or "")
