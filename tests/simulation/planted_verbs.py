"""Bugs that tests plant in the lifecycle. Each is a patch that the simulation of operators must detect.

python -m tests.simulation.planted_verbs       prints the table for the documentation
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.processors.engine import provisioning
from holdfast.processors.engine.commands import keys
from holdfast.processors.engine.commands.sweep import Sweep
from holdfast.processors.lifecycle.deploy import marking
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors
from holdfast.processors.lifecycle.plans import apply as applying
from holdfast.processors.lifecycle.plans.execution import Execution
from holdfast.processors.lifecycle.plans.facts import facts
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import Everything
from holdfast.processors.lifecycle.plans.stages import ClearKeys, RunProcessor, SetPositions, StopProcessor
from holdfast.processors.lifecycle.rebuild import from_tables
from holdfast.processors.lifecycle.rebuild.from_tables import TableStages
from holdfast.processors.lifecycle.recovery import incidents
from holdfast.processors.lifecycle.verbs.releases import rollback, stop
from holdfast.processors.lifecycle.verbs.state import backfill, clear, restore, restore_table
from holdfast.processors.lifecycle.world.local_state import LocalFolders
from holdfast.processors.lifecycle.world.running_owners import RunningOwners
from tests.simulation.lifecycle import lifecycle_runner
from tests.simulation.lifecycle_operator import Operator
from tests.simulation.planted import Planted, print_table


def _local_only(patch: pytest.MonkeyPatch) -> None:
    """The bug: a clear deletes keys only in the local database, not in the changelog."""

    def commit_apart(worker: Any, task: Any, ticket: Any, writes: Any, inputs: Any) -> Any:
        changes = [change for name, each in writes.items() for change in task.states[name].rocks_changes(each)]
        task.store.write(changes, task.meta)
        for name in writes:
            task.states[name].forget()
        yield from original(worker, task, ticket, {}, inputs)

    original = keys.commit_apart
    patch.setattr(keys, "commit_apart", commit_apart)


def _first_owner_only(patch: pytest.MonkeyPatch) -> None:
    """The bug: only the first of several workers receives the command."""
    original = RunningOwners._owners
    patch.setattr(RunningOwners, "_owners", lambda self, *of: original(self, *of)[:1])


def _one_batch(patch: pytest.MonkeyPatch) -> None:
    """The bug: a clear ends after its first batch of deletes."""
    original = Sweep.batch

    def batch(self: Sweep) -> Any:
        found = original(self)
        self.done = True
        return found

    patch.setattr(Sweep, "batch", batch)


def _planned_anew(patch: pytest.MonkeyPatch) -> None:
    """The bug: an interrupted clear or restore is planned again instead of resumed."""
    original = clear.plan

    def plan(*arguments: Any) -> Plan:
        return msgspec.structs.replace(original(*arguments), after_kill="plan anew")

    patch.setattr(clear, "plan", plan)
    aside = restore.plan
    patch.setattr(restore, "plan", lambda *of: msgspec.structs.replace(aside(*of), after_kill="plan anew"))


def _noted_early(patch: pytest.MonkeyPatch) -> None:
    """The bug: a failed stage (step of a plan) is recorded as done."""
    original = Execution.__call__

    def call(self: Execution, processor: str, stage: Any, tell: Any) -> Any:
        try:
            return original(self, processor, stage, tell)
        except Exception as failure:
            return applying.Done(str(failure))

    patch.setattr(Execution, "__call__", call)


def _set_aside_deletes(patch: pytest.MonkeyPatch) -> None:
    """The bug: local state that was set aside is never deleted."""
    patch.setattr(LocalFolders, "delete_aside", lambda self, tasks, name: 0)


def _pause_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The bug: workers that are started for a clear (deletion of keys) do not start paused."""
    original = DeployedProcessors.run

    def run(self: DeployedProcessors, processor: str, stage: RunProcessor, tell: Any) -> Any:
        return original(self, processor, msgspec.structs.replace(stage, paused=False), tell)

    patch.setattr(DeployedProcessors, "run", run)


def _all_partitions(patch: pytest.MonkeyPatch) -> None:
    """The bug: a clear (deletion of keys) in some partitions deletes the keys in all partitions."""
    original = RunningOwners.clear

    def clears(self: RunningOwners, processor: str, stage: ClearKeys, tell: Any) -> int:
        return original(self, processor, msgspec.structs.replace(stage, partitions=()), tell)

    patch.setattr(RunningOwners, "clear", clears)


def _all_keys(patch: pytest.MonkeyPatch) -> None:
    """The bug: a clear (deletion of keys) of some keys deletes all keys."""
    original = RunningOwners.clear

    def clears(self: RunningOwners, processor: str, stage: ClearKeys, tell: Any) -> int:
        return original(self, processor, msgspec.structs.replace(stage, selection=Everything()), tell)

    patch.setattr(RunningOwners, "clear", clears)


def _never_closed(patch: pytest.MonkeyPatch) -> None:
    """The bug: if the operator dies after the last stage (step), the apply (execution of a plan) stays open."""
    patch.setattr(applying.Applier, "_close_what_is_done", lambda *of: None)


def _plan_acts(patch: pytest.MonkeyPatch) -> None:
    """The bug: planning already changes the installation. It records the processor as stopped."""
    original = Operator.plan

    def plan(self: Operator, request: Any) -> Plan:
        self.acting.registry.record_stopped(request.processor, self._now())
        return original(self, request)

    patch.setattr(Operator, "plan", plan)


def _stale_positions(patch: pytest.MonkeyPatch) -> None:
    """The bug: a restore from the warehouse does not set the positions of the input."""

    original = TableStages.set_positions

    def set_positions(self: TableStages, processor: str, stage: SetPositions, tell: Any) -> Any:
        return original(self, processor, msgspec.structs.replace(stage, positions={}), tell)

    patch.setattr(TableStages, "set_positions", set_positions)


def _rows_left_out(patch: pytest.MonkeyPatch) -> None:
    """The bug: a restore does not load the last row of a partition, and no check compares the result."""
    original = from_tables.checked_rows

    def rows(*of: Any) -> Any:
        return iter([*original(*of)][:-1])

    patch.setattr(from_tables, "checked_rows", rows)
    patch.setattr(TableStages, "compare", lambda self, processor, stage, tell: applying.Done(""))


def _one_snapshot_for_all(patch: pytest.MonkeyPatch) -> None:
    """The bug: stores that read the same inputs are restored separately, so their snapshots may differ."""
    patch.setattr(restore_table, "affected", lambda request, topology: request.stores or _stores(topology))


def _cut_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The bug: a changelog whose first records were deleted counts as complete."""
    original = backfill.unusable

    def unusable(facts: Any, topology: Any) -> dict[str, str]:
        return original(msgspec.structs.replace(facts, starts={}), topology)

    patch.setattr(backfill, "unusable", unusable)
    patch.setattr(clear, "unusable", unusable)


def _width_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The bug: a changelog with more partitions than its source counts as valid."""
    original = backfill.unusable

    def unusable(facts: Any, topology: Any) -> dict[str, str]:
        return {name: why for name, why in original(facts, topology).items() if "partitions" not in why}

    patch.setattr(backfill, "unusable", unusable)
    patch.setattr(clear, "unusable", unusable)


def _nobody_looks(patch: pytest.MonkeyPatch) -> None:
    """The bug: changelogs are rebuilt from local state without a check that this state is complete."""
    patch.setattr(backfill, "_not_whole", lambda *of: None)


def _outputs_not_made(patch: pytest.MonkeyPatch) -> None:
    """The bug: no plan creates the output topic."""
    original = provisioning.plan

    def plan(*of: Any) -> Any:
        found = original(*of)
        kept = tuple(each for each in found.stages if getattr(each, "role", "") != "output topic")
        return provisioning.ProvisionPlan(kept, found.refusals, found.kept)

    patch.setattr(provisioning, "plan", plan)


def _registry_trusted(patch: pytest.MonkeyPatch) -> None:
    """The bug: Holdfast's registry is trusted even if it is an old copy, older than the processor's deployment."""
    patch.setattr(marking, "judge", lambda *of: None)


def _recovery_trusts(patch: pytest.MonkeyPatch) -> None:
    """The bug: recovery does not check whether Holdfast's registry is an old copy. Verbs still check this."""
    patch.setattr(incidents, "behind", lambda *of: None)


def _strangers_unseen(patch: pytest.MonkeyPatch) -> None:
    """The bug: a deploy does not look for foreign members in the consumer group."""
    patch.setattr(facts, "strangers_in", lambda *of: [])


def _stopped_for_a_while(patch: pytest.MonkeyPatch) -> None:
    """The bug: a stop counts as temporary, so recovery restarts the stopped workers."""
    original = stop.plan

    def plan(*arguments: Any) -> Plan:
        made = original(*arguments)
        stages = [
            msgspec.structs.replace(each, for_good=False) if isinstance(each, StopProcessor) else each
            for each in made.stages
        ]
        return msgspec.structs.replace(made, stages=tuple(stages))

    patch.setattr(stop, "plan", plan)


def _rollback_to_any(patch: pytest.MonkeyPatch) -> None:
    """The bug: a rollback runs another release than the one that it names, if there is one."""
    original = rollback._named

    def other(name: str, releases: Any) -> Any:
        named = original(name, releases)
        return next((each for each in releases if each is not named), named)

    patch.setattr(rollback, "_named", other)


def _stores(topology: Any) -> tuple[str, ...]:
    return tuple(store.name for store in topology.stores)


BUGS: tuple[Planted, ...] = (
    Planted("a clear deletes locally, and forgets the changelog", _local_only),
    Planted("only the first of several owners is asked", _first_owner_only),
    Planted("a clear ends after its first batch", _one_batch),
    Planted("a clear or restore that was broken off is planned again", _planned_anew),
    Planted("a stage that failed is noted as done", _noted_early),
    Planted("what was set aside is never deleted", _set_aside_deletes),
    Planted("workers are not paused for a clear", _pause_forgotten),
    Planted("a clear of some partitions clears all", _all_partitions),
    Planted("a clear of some keys clears all", _all_keys),
    Planted("an apply that died after its work stays open", _never_closed),
    Planted("planning changes what it looks at", _plan_acts),
    Planted("a restore from the warehouse leaves input where it stands", _stale_positions),
    Planted("a row is not loaded, and nothing is compared", _rows_left_out),
    Planted("stores of the same inputs come back one without the other", _one_snapshot_for_all),
    Planted("a changelog that lost its first records passes for whole", _cut_forgotten),
    Planted("a changelog with too many partitions passes for right", _width_forgotten),
    Planted("a changelog is created again from local state that is lost", _nobody_looks),
    Planted("a deploy makes no output topic", _outputs_not_made),
    Planted("an older copy of the registry is trusted", _registry_trusted),
    Planted("recovery starts what an older copy of the registry names", _recovery_trusts),
    Planted("a stop is one for a while", _stopped_for_a_while),
    Planted("a rollback ignores the release that was named", _rollback_to_any),
    Planted("members of another installation are not looked for", _strangers_unseen),
)


def main() -> None:
    """Print the table of the lifecycle's planted bugs for the documentation."""
    with lifecycle_runner() as seeds:
        print_table(seeds, BUGS, 60)


if __name__ == "__main__":
    main()
