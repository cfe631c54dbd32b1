"""The check `erased_keys_stay_gone` of each processor; the nightly schedule also runs this check.

Invariants:
    - RocksDB is imported only by a run with an erased key, not when definitions are loaded.
    - Without an erased key, the check reads the registry alone. Otherwise it reads a local checkpoint of each worker.
"""

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.ports import Lifecycle
from holdfast.assets.rollouts import clients_of
from holdfast.infra.errors import HoldfastError
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.lifecycle.erasure.returned import entries_again, judge_returned
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys

STAY_GONE = "erased_keys_stay_gone"


def erased_check_keys(definition: ProcessorDefinition) -> list[dg.AssetCheckKey]:
    """The key of the check that ``erased_check`` defines; empty for a processor without state."""
    return [dg.AssetCheckKey(keys.processor_key(definition.name), STAY_GONE)] if definition.topology.stores else []


def erased_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """Defines the check that no key which was erased has state again."""

    @dg.asset_check(
        asset=keys.processor_key(definition.name),
        name=STAY_GONE,
        description="No erased key has state again, by late messages of it. Reads all state of the running workers, if "
        "a key was erased.",
    )
    def erased_keys_stay_gone(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        return erased_result(definition.name, lifecycle).result()

    return erased_keys_stay_gone


def erased_result(processor: str, lifecycle: Lifecycle) -> CheckResult:
    """The result of the check, from the registry and the state of the running workers."""
    known = ErasedKeys.of(lifecycle.world.registry, lifecycle.paths, processor)
    again, why = dict[str, int]() if not known.times else None, ""
    if known.times:
        try:
            again = entries_again(known, (client.checkpoint() for client in clients_of(processor, lifecycle)))
        except HoldfastError as failed:
            why = failed.message
    found = judge_returned(processor, len(known.times), again, why)
    return CheckResult(
        keys.processor_key(processor),
        STAY_GONE,
        found.passed,
        found.sentence,
        "no state of an erased key",
        found.action,
        warns=found.warns,
        metadata={
            "erased_keys": len(known.times),
            **({} if again is None else {"keys_again": len(again), "entries_again": sum(again.values())}),
        },
    )
