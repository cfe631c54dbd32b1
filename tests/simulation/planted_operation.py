"""Bugs that tests plant in status and recovery. Each bug is a patch of the code.

Each bug must be detected by courses (simulated sequences of commands and faults).

python -m tests.simulation.planted_operation       prints the table for the documentation
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from holdfast.infra.database import applies
from holdfast.infra.database.releases import ReleaseBook
from holdfast.orchestration.host import local, run_coordinator
from holdfast.processors.engine.commands import keys
from holdfast.processors.engine.runtime.owner_commands.maintenance import Maintenance
from holdfast.processors.lifecycle.deploy import code_files, releases, running
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.erasure import erasing
from holdfast.processors.lifecycle.erasure.finding import Found
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans import way_on
from holdfast.processors.lifecycle.recovery import ages, diagnosis, incidents, processor_now, remedies, tick
from holdfast.processors.lifecycle.recovery import attempt as recovery
from holdfast.processors.lifecycle.recovery import working_check as answer
from holdfast.processors.lifecycle.recovery.diagnosis import Dead
from holdfast.processors.lifecycle.recovery.incidents import Observation
from holdfast.processors.lifecycle.recovery.remedies import PerSlot
from holdfast.processors.proof import refusal
from tests.simulation import operation_sensor, planted_outside, planted_telling
from tests.simulation.operation import operation_runner
from tests.simulation.planted import Planted, print_table


def _word_trusted(patch: pytest.MonkeyPatch) -> None:
    """The bug: Holdfast's registry still says "deploying" after the apply (execution of a plan) has ended.

    Status and recovery trust this record.
    """
    patch.setattr(applies, "_no_longer_deploying", lambda processor, now: text("SELECT 1"))
    patch.setattr(incidents, "wanted", lambda recorded, world: recorded)


def _live_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The bug: an open apply (execution of a plan) counts as running, even if its process is dead."""
    patch.setattr(processor_now, "is_broken_off", lambda record: False)


def _applies_block(patch: pytest.MonkeyPatch) -> None:
    """The bug: recovery waits for every open apply (execution of a plan), even if the apply's process is dead."""
    patch.setattr(incidents, "is_broken_off", lambda record: False)


def _two_actions(patch: pytest.MonkeyPatch) -> None:
    """The bug: status shows two actions, because the quoted error of an apply (executed plan) contains one, too."""
    patch.setattr(answer, "in_one_line", lambda told: told.splitlines()[0])


def _nobody_recovers(patch: pytest.MonkeyPatch) -> None:
    """The bug: an incident requests a recovery run, but the run restarts nothing."""
    patch.setattr(recovery._Recovery, "_restart", lambda self, sick: "started nothing")


def _one_asks_for_all(patch: pytest.MonkeyPatch) -> None:
    """The bug: if only a person can repair one worker, recovery restarts none of the other workers."""
    original = recovery.decide_slots

    def decide(*given: Any) -> PerSlot:
        chosen = original(*given)
        return PerSlot({}, chosen.waits, chosen.asks) if chosen.asks else chosen

    patch.setattr(recovery, "decide_slots", decide)


def _keys_are_counted(patch: pytest.MonkeyPatch) -> None:
    """The bug: the run key is the number of existing runs.

    After a run was deleted, Dagster drops a request as a repeated one.
    """
    patch.setattr(tick, "next_key", lambda incident, keys: f"incident-{incident.id}-{len(list(keys)) + 1}")


def _beside_others(patch: pytest.MonkeyPatch) -> None:
    """The bug: recovery does not look for workers of another installation."""
    patch.setattr(operation_sensor, "find_strangers", lambda *given: ())


def _silence_is_death(patch: pytest.MonkeyPatch) -> None:
    """The bug: a worker counts as dead while its supervisor does not answer."""

    def dead(slot: str, *rest: Any) -> Observation:
        return Observation(None, None, Dead(None, None))

    patch.setattr(incidents, "_unsupervised", dead)


def _wish_is_shown(patch: pytest.MonkeyPatch) -> None:
    """The bug: status shows the recorded version; a running worker's version and release are not compared."""
    patch.setattr(diagnosis, "_compared", lambda status, desired: None)
    patch.setattr(DeployedSettings, "imports", lambda book, processor, slot, release: True)


def _settings_of_now(patch: pytest.MonkeyPatch) -> None:
    """The bug: a restart uses the settings of recovery's own environment, and no check notices the difference."""
    patch.setattr(DeployedSettings, "environment_of", lambda book, processor, release, present: dict(present))
    patch.setattr(incidents, "_other_programs", lambda *given: {})


def _settings_not_compared(patch: pytest.MonkeyPatch) -> None:
    """The bug: a worker's settings are not compared with the deployed settings."""
    patch.setattr(incidents, "_other_programs", lambda *given: {})


def _pause_is_fine(patch: pytest.MonkeyPatch) -> None:
    """The bug: a paused worker counts as healthy."""
    original = diagnosis._compared

    def compared(status: Any, desired: Any) -> Any:
        found = original(status, desired)
        return None if found is not None and found.kind == "paused" else found

    patch.setattr(diagnosis, "_compared", compared)


def _record_has_all(patch: pytest.MonkeyPatch) -> None:
    """The bug: running workers that Holdfast's registry does not record are not noticed."""
    patch.setattr(incidents, "slots_beyond", lambda *given: ())


def _ahead_is_past(patch: pytest.MonkeyPatch) -> None:
    """The bug: a recorded time that is in the future, because a clock was ahead, is treated like a time in the past."""
    for module in (ages, diagnosis, incidents):
        patch.setattr(module, "is_ahead", lambda moment, now: False)


def _plan_is_read(patch: pytest.MonkeyPatch) -> None:
    """The bug: the plan of an open apply (execution) is decoded even if another version of Holdfast wrote the plan."""
    patch.setattr(way_on, "read", lambda record: plans.decode(record.plan))


def _fails_for_good(patch: pytest.MonkeyPatch) -> None:
    """The bug: a failed deploy does not start the former release again."""
    patch.setattr(running, "_goes_back", lambda stage: False)


def _supervisor_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """The bug: status names the command for an interrupted apply (execution of a plan) while the supervisor hangs."""
    original = processor_now.judge_interrupted

    def judge(begun: Any, found: Any) -> Any:
        return original(begun, {slot: each for slot, each in found.items() if each.kind != "supervisor-silent"})

    patch.setattr(processor_now, "judge_interrupted", judge)


def _others_are_not_named(patch: pytest.MonkeyPatch) -> None:
    """The bug: status names an action that is refused because of workers of another installation."""
    patch.setattr(processor_now, "strangers_beside", lambda *given: ())


def _undo_is_pruned(patch: pytest.MonkeyPatch) -> None:
    """The bug: pruning keeps the newest releases, even if they never worked."""
    patch.setattr(releases, "UNDO", 0)
    patch.setattr(ReleaseBook, "before", lambda book, processor: None)


def _one_lane(patch: pytest.MonkeyPatch) -> None:
    """The bug: recovery runs share the concurrency limit of all other runs."""
    patch.setattr(run_coordinator, "RECOVERY", "")


def _limit_of_all(patch: pytest.MonkeyPatch) -> None:
    """The bug: Dagster runs at most four runs at a time, recovery runs included."""
    original = local.prepare

    def prepare(settings: Any) -> Any:
        home = original(settings)
        config = home / "dagster.yaml"
        config.write_text(config.read_text().replace("max_concurrent_runs: -1", "max_concurrent_runs: 4"))
        return home

    patch.setattr(local, "prepare", prepare)


def _watched_by_the_project(patch: pytest.MonkeyPatch) -> None:
    """The bug: the recovery sensor is in the project's only code location, and fails with it."""
    words = local._PROJECT_WORKSPACE.splitlines(keepends=True)
    at = next(number for number, line in enumerate(words) if "recovery_location" in line)
    patch.setattr(local, "_PROJECT_WORKSPACE", "".join((*words[: at - 1], *words[at + 2 :])))


def _only_the_definition(patch: pytest.MonkeyPatch) -> None:
    """The bug: a release contains the definition's file, but not the modules that it imports."""
    patch.setattr(code_files, "_imports", lambda nodes: iter(()))


def _written_early(patch: pytest.MonkeyPatch) -> None:
    """The bug: a clear (deletion of keys) writes its undo file before it pauses the input, not after the pause."""
    original, export, hold = keys.clear, keys.export, Maintenance.hold

    def clear(worker: Any, ticket: Any, tasks: Any, asked: Any, *rest: Any) -> Any:
        written: dict[str, Any] = {}
        if asked.export:
            with patch.context() as early:
                early.setattr(Maintenance, "hold", lambda maintenance: None)
                writing = export(worker, ticket, tasks, asked, rest[0], once=asked.once)
                next(writing)
            written = yield from writing
            yield
        assert Maintenance.hold is hold
        found = yield from original(worker, ticket, tasks, msgspec.structs.replace(asked, export=False), *rest)
        return {**found, **keys.files_of_result(written, [])}

    patch.setattr(keys, "clear", clear)


def _file_is_kept(patch: pytest.MonkeyPatch) -> None:
    """The bug: a repeated clear (deletion of keys) keeps the undo file of its first attempt."""
    original = keys.export

    def export(worker: Any, ticket: Any, *rest: Any, once: str = "", **named: Any) -> Any:
        if kept := keys.written_before(worker, once):
            yield
            return {"keys": 0, "entries": 0, "bytes": 0, "partitions": [], "path": kept[-1], "sha256": ""}
        return (yield from original(worker, ticket, *rest, once=once, **named))

    patch.setattr(keys, "export", export)


def _hangs_let_through(patch: pytest.MonkeyPatch) -> None:
    """The bug: a version may replace the running one although it hangs or crashes where the running one does not."""
    patch.setattr(refusal, "is_broken_alone", lambda new, running: False)


def _nothing_is_proof(patch: pytest.MonkeyPatch) -> None:
    """The bug: a trial run in which no step ran passes as proof of a version, because nothing failed."""
    patch.setattr(refusal, "_unreached", lambda new: [])
    patch.setattr(refusal, "_silent", lambda *given: [])


def _version_is_blamed(patch: pytest.MonkeyPatch) -> None:
    """The bug: a return to a former version is named for a fault that every version has, such as expired offsets."""
    patch.setattr(remedies, "OF_DATA", frozenset())


def _compaction_believed(patch: pytest.MonkeyPatch) -> None:
    """The bug: an erasure certifies that a changelog is compacted, and does not read it."""
    patch.setattr(erasing, "prove_compacted", lambda *arguments: Found("gone", "it is believed"))


def _compaction_left(patch: pytest.MonkeyPatch) -> None:
    """The bug: an abandoned erasure does not set the former configuration of its changelogs again."""
    patch.setattr(way_on, "is_undone_at_the_end", lambda plan, number: False)


BUGS: tuple[Planted, ...] = (
    Planted("the word of an apply outlives it, and is trusted", _word_trusted),
    Planted("an open apply counts as live for ever", _live_for_ever),
    Planted("recovery waits for every open apply", _applies_block),
    Planted("the reason of an apply brings a second action", _two_actions),
    Planted("a recovery run starts nothing", _nobody_recovers),
    Planted("a slot that asks a person keeps recovery from the others", _one_asks_for_all),
    Planted("the key of a recovery run is the number of runs", _keys_are_counted),
    Planted("recovery starts workers beside another installation", _beside_others),
    Planted("the silence of the supervisor is the death of its workers", _silence_is_death),
    Planted("a running worker is taken for the recorded one", _wish_is_shown),
    Planted("recovery starts workers with the settings of its own environment", _settings_of_now),
    Planted("the settings of workers are not compared", _settings_not_compared),
    Planted("a paused worker is green", _pause_is_fine),
    Planted("workers beyond the record are not looked for", _record_has_all),
    Planted("a time that lies ahead is taken for one of the past", _ahead_is_past),
    Planted("the plan of another version is read", _plan_is_read),
    Planted("a deploy that fails starts no former release", _fails_for_good),
    Planted("the release that a rollback runs is pruned", _undo_is_pruned),
    Planted("the command of an interrupted apply is named while the supervisor hangs", _supervisor_is_not_asked),
    Planted("an action is named that is refused beside another installation", _others_are_not_named),
    Planted("recovery shares the lane of other runs", _one_lane),
    Planted("a limit of all runs together holds for recovery", _limit_of_all),
    Planted("the recovery sensor is in the project's code location", _watched_by_the_project),
    Planted("a release holds only the file of the definition", _only_the_definition),
    Planted("a clear writes its undo file before the input is paused", _written_early),
    Planted("a clear that is begun again keeps its old undo file", _file_is_kept),
    Planted("a version that hangs in its proof is not refused", _hangs_let_through),
    Planted("a replay in which nothing ran proves a version", _nothing_is_proof),
    Planted("a version is blamed for what every version has", _version_is_blamed),
    Planted("an erasure does not wait for compaction", _compaction_believed),
    Planted("an abandoned erasure leaves its changelogs to be compacted at once", _compaction_left),
    *(Planted(name, plant) for name, plant in planted_telling.PLANTS.items()),
    *(Planted(name, plant) for name, plant in planted_outside.PLANTS.items()),
)


def main() -> None:
    """Print the table of planted bugs for the documentation."""
    with operation_runner() as seeds:
        print_table(seeds, BUGS, 400)


if __name__ == "__main__":
    main()
