"""Bugs that the simulation of operation cannot detect. Each of them has a unit test that must fail with the bug.

python -m tests.simulation.planted_twins       prints JSON: by bug, whether its test passes without and with the bug
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from holdfast.assets.checks import proven
from holdfast.infra.database import pruning
from holdfast.infra.database.releases import ReleaseBook
from holdfast.orchestration.commands.reports import processor_rows
from holdfast.orchestration.view import reasons
from holdfast.processors.engine.runtime.task.arrivals import Arrivals
from holdfast.processors.lifecycle.deploy import code_files, deployment, releases, running, watch
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.releases import ReleaseFolders
from holdfast.processors.lifecycle.health import arrivals
from holdfast.processors.lifecycle.recovery import tick
from holdfast.processors.lifecycle.recovery.processor_now import processor_now
from holdfast.processors.lifecycle.world import setting_aside
from holdfast.processors.proof import prover, refusal

LIFECYCLE = "tests/unit/processors/lifecycle"
RELEASES, BACK = f"{LIFECYCLE}/deploy/test_releases.py", f"{LIFECYCLE}/deploy/test_going_back.py"
PROVER = "tests/unit/processors/proof/test_prover.py"
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Twin:
    """A bug: the patch that plants it, and the test that must fail with it."""

    name: str
    test: str
    plant: Plant


def everywhere(patch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Replace a function in each module that has imported it."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                patch.setattr(module, name, new)


def _one_breaks_all(patch: pytest.MonkeyPatch) -> None:
    def describe(deployment: Any, world: Any, limits: Any) -> Any:
        now = processor_now(deployment.processor, world, limits)
        return [], reasons.of_processor(deployment.processor, now.answer)

    everywhere(patch, processor_rows.describe_processor, describe)


def _back_to_the_bad_one(patch: pytest.MonkeyPatch) -> None:
    def before(book: ReleaseBook, processor: str) -> Any:
        now = book.working(processor)
        others = [each for each in book.newest(processor) if each.worked_at is not None and each != now]
        return others[0] if others else None

    patch.setattr(ReleaseBook, "before", before)


def _links_are_left_out(patch: pytest.MonkeyPatch) -> None:
    original = code_files._below

    def below(place: Path) -> list[Path]:
        return [each for each in original(place) if not any(at.is_symlink() for at in (each, *each.parents))]

    patch.setattr(code_files, "_below", below)


def _workers_stay(patch: pytest.MonkeyPatch) -> None:
    original = running.DeployedProcessors._go_back

    def go_back(self: Any, processor: str, stage: Any, *rest: Any, **named: Any) -> Any:
        return original(self, processor, replace_stage(stage), *rest, **named)

    def replace_stage(stage: Any) -> Any:
        facts = {name: getattr(stage, name) for name in stage.__struct_fields__}
        return type(stage)(**{**facts, "back_slots": ()})

    patch.setattr(running.DeployedProcessors, "_go_back", go_back)


def _all_at_once(patch: pytest.MonkeyPatch) -> None:
    original = deployment.deploy

    def deploy(rollout: Any, *given: Any, **named: Any) -> Any:
        return original(replace(rollout, together=True), *given, **named)

    everywhere(patch, original, deploy)


@contextmanager
def _kept(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _words_of_the_newest(patch: pytest.MonkeyPatch) -> None:
    def results(applies: Any, release: str | None) -> Any:
        return [note.text for each in applies if each.verb == "deploy" for note in each.done][:1]

    everywhere(patch, proven.results_of, results)


def _all_arrive(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, arrivals.judge_arrivals, lambda *given: None)


TWINS: tuple[Twin, ...] = (
    Twin(
        "runs of a former incident count for one with its number",
        "tests/dagster/test_recovery_sensor.py::test_runs_of_an_incident_of_another_registry_are_not_counted",
        lambda patch: patch.setattr(tick, "is_of", lambda *given: True),
    ),
    Twin(
        "one processor that can't be read hides all",
        f"{LIFECYCLE}/plans/test_way_on.py::test_a_processor_that_cannot_be_read_is_one_red_line_and_hides_no_other",
        _one_breaks_all,
    ),
    Twin(
        "a second rollback returns to the version that was rolled back",
        f"{RELEASES}::test_each_rollback_goes_back_in_time_and_never_to_what_was_rolled_back",
        _back_to_the_bad_one,
    ),
    Twin(
        "refused deploys prune nothing",
        f"{RELEASES}::test_each_deploy_prunes_before_it_copies_so_that_refused_ones_do_not_add_up",
        lambda patch: patch.setattr(ReleaseFolders, "prune", lambda *given: 0),
    ),
    Twin(
        "linked folders are not copied",
        f"{RELEASES}::test_linked_folders_and_modules_are_copied_under_their_names",
        _links_are_left_out,
    ),
    Twin(
        "data files are not copied",
        f"{RELEASES}::test_data_files_that_the_code_opens_beside_itself_are_copied_and_others_are_named",
        lambda patch: patch.setattr(code_files, "_is_data", lambda path: False),
    ),
    Twin(
        "a torn copy counts as whole",
        f"{RELEASES}::test_a_copy_that_was_torn_is_made_again",
        lambda patch: patch.setattr(releases, "_is_whole", lambda *given: True),
    ),
    Twin(
        "a failed deploy leaves its number of workers",
        f"{BACK}::test_a_failed_deployment_restores_the_number_of_workers",
        _workers_stay,
    ),
    Twin(
        "another release of one version stops all workers at once",
        f"{BACK}::test_another_release_of_one_version_rolls_worker_by_worker",
        _all_at_once,
    ),
    Twin(
        "state that could not be had is not told",
        f"{PROVER}::test_state_that_could_not_be_had_is_not_proven_with_the_reason",
        lambda patch: patch.setattr(refusal, "NOT_PROVEN", ""),
    ),
    Twin(
        "dead letters do not fail a watch",
        f"{LIFECYCLE}/deploy/test_dead_letter_watch.py",
        lambda patch: everywhere(patch, watch.puts_aside, lambda *given: None),
    ),
    Twin(
        "what a proof writes stays",
        f"{PROVER}::test_what_a_killed_proof_left_is_deleted_by_the_next_one_and_no_other_user_reads_it",
        lambda patch: patch.setattr(prover, "_emptied", _kept),
    ),
    Twin(
        "the check speaks of the newest deploy after a rollback",
        f"{PROVER}::test_after_a_rollback_the_check_speaks_of_the_version_that_runs",
        _words_of_the_newest,
    ),
    Twin(
        "counts of what does not arrive stay behind in a rebalance",
        "tests/simulation/test_counts_of_rebalances.py",
        lambda patch: patch.setattr(Arrivals, "recall", lambda self, counts: None),
    ),
    Twin(
        "status has no line about what does not arrive",
        "tests/unit/orchestration/commands/reports/test_arrivals_line.py",
        _all_arrive,
    ),
    Twin(
        "the settings of a pruned release stay",
        f"{RELEASES}::test_the_settings_of_a_pruned_release_go_with_it",
        lambda patch: patch.setattr(DeployedSettings, "forget", lambda *given: None),
    ),
    Twin(
        "state that was set aside adds up",
        f"{LIFECYCLE}/world/test_setting_aside.py",
        lambda patch: patch.setattr(setting_aside, "_delete_older", lambda folder: []),
    ),
    Twin(
        "dead incidents add up",
        "tests/unit/infra/database/test_pruning.py::test_old_incidents_go_unless_they_are_open_or_wait_for_an_answer",
        lambda patch: patch.setattr(pruning, "_prune", lambda *given, **named: 0),
    ),
)


def main() -> None:
    """Run each bug's test without and with the bug, and print the results as JSON."""
    found = {}
    for twin in TWINS:
        # run first without the bug, so that the test's module is already imported when the bug is planted
        without = _passes(twin.test)
        with pytest.MonkeyPatch.context() as patch:
            twin.plant(patch)
            found[twin.name] = without, _passes(twin.test)
    print(json.dumps(found))


def _passes(test: str) -> bool:
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--tier=thorough"]
    with redirect_stdout(StringIO()):
        return pytest.main([*options, test]) == pytest.ExitCode.OK


if __name__ == "__main__":
    main()
