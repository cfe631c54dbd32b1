"""Starts and stops processors for the stages (steps) of a plan. Implements ``execution.Runner`` with the supervisor.

Invariants:
    - A worker that already runs the version and settings of the stage is not restarted, so a repeated stage changes
      nothing.
    - If a release fails to start, the previous release is started again, and then the error is raised.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.infra.database.records import Release
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.provisioning import TopicWorld
from holdfast.processors.lifecycle.deploy.code_files import Code
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.deployment import DeploymentFailed, DeploymentResult, Progress, deploy, stop
from holdfast.processors.lifecycle.deploy.marking import keep_mark
from holdfast.processors.lifecycle.deploy.present import remove_others
from holdfast.processors.lifecycle.deploy.releases import KEPT, ReleaseFailed, ReleaseFolders
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.plans.apply import ApplyFailed, Done, ProgressLog
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.shape import Shape, from_document
from holdfast.processors.lifecycle.plans.stages import AdoptDeployment, MakeRelease, RunProcessor
from holdfast.processors.lifecycle.ports import World

#: Environment variables that the function ``rollout_of_release`` sets. They override the settings of a deployment, so
#: that a worker imports only the definition of its release.
_OF_RELEASE = ("HOLDFAST_PROCESSORS",)
#: Minimum timeout, in seconds, for the start of the previous release after a failure.
BACK_S = 300.0


class RolledBack(ApplyFailed):
    """A version failed, and the previous version runs again.

    Fields: the fields of DeploymentFailed, and ``works`` (the version that runs now).
    """


class RollbackFailed(ApplyFailed):
    """A version failed, and the previous version also failed or does not exist. The processor does not run."""


def rollout_of_release(
    release: Release, topics: Topics, slots: tuple[str, ...], environment: Mapping[str, str], project: Path
) -> Rollout:
    """Describes how to run a release.

    ``environment`` has the settings of its workers, ``project`` is their working folder.
    """
    names = list(from_document(release.shape).inputs)
    facts = topics.describe(names)
    return Rollout(
        processor=release.processor,
        code_version=release.code_version,
        slots=slots,
        inputs={name: facts[name].partitions for name in names if name in facts},
        # Import only the processor's own definition, so that an error in another definition cannot stop a rollback.
        environment={**environment, "HOLDFAST_PROCESSORS": json.dumps([release.target])},
        project=project,
        release=None if release.folder is None else Path(release.folder),
    )


class DeployedProcessors:
    """Starts, stops and rolls back processors through the supervisor.

    Args:
        world: Access to the supervisor, Holdfast's registry and the workers.
        rollout: Function of processor and release id that returns the rollout (how to run the processor). Release id
            None means the deployed release.
        who: Name of the user or Dagster run, for the registry.
        code: Function of the processor that returns the present files of its definition, and its topics and stores.
        topics: Reads the ids and partition counts of topics.
        releases_kept: Number of releases that are kept for each processor.
        present: Function that returns the workers' environment from the present settings, which a deploy records; None
            in simulations.
    """

    def __init__(
        self,
        world: World,
        rollout: Callable[[str, str | None], Rollout],
        who: str,
        code: Callable[[str], tuple[Code, Shape]],
        topics: TopicWorld,
        releases_kept: int = KEPT,
        present: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._topics = topics
        self._world = world
        self._rollout = rollout
        self._who = who
        self._code = code
        self._present = present
        self._settings = DeployedSettings(world.paths)
        self._releases = ReleaseFolders(world.registry.releases, world.paths, releases_kept)
        #: The result of the last deployment; None before the first deployment.
        self.result: DeploymentResult | None = None

    def make_release(self, processor: str, stage: MakeRelease) -> Done:
        """Copy the code of a version and record it as a release."""
        code, shape = self._code(processor)
        # Also prune before the copy, because only a successful deploy prunes at its end. If every deploy failed, the
        # number of releases would grow without limit.
        self._releases.prune(processor, [stage.release_id, *self._deployed(processor)])
        made = self._releases.make(processor, stage.release_id, code, shape, self._world.clock())
        if made.folder is None:
            return Done(f"release {made.release_id} recorded; its code is not copied: {code.why_not}")
        return Done(f"release {made.release_id} in {made.folder}: {count_of(len(code.files), 'file')}", len(code.files))

    def _deployed(self, processor: str) -> tuple[str, ...]:
        """The id of the release that is deployed now, even if it never worked; empty if nothing is deployed."""
        registry = self._world.registry
        known = registry.deployment(processor)
        found = None if known is None else registry.releases.of_version(processor, known.code_version)
        return () if found is None else (found.release_id,)

    def run(self, processor: str, stage: RunProcessor, tell: ProgressLog) -> Done:
        """Start all workers of a version; if a new release (copy of the code) fails, start the previous one again."""
        changelogs = {store: changelog_topic(processor, store) for store in stage.begin_empty}
        found = self._topics.describe(list(changelogs.values()))
        ids = {store: found[name].topic_id for store, name in changelogs.items() if name in found}
        options = options_of(stage, ids)
        rollout = self._rollout(processor, stage.release_id)
        rollout = replace(
            rollout,
            options=options,
            together=stage.together,
            slots=stage.slots or rollout.slots,
            rescale=stage.rescale,
            warm_s=stage.warm_s,
        )
        if rollout.code_version != stage.code_version:
            raise ReleaseFailed(
                f"The plan starts version {stage.code_version} of {processor}, but the present version is "
                f"{rollout.code_version}.",
                action=f"Read the present plan with `holdfast explain deploy {processor}`, and apply it.",
                processor=processor,
                seen=rollout.code_version,
                expected=stage.code_version,
            )
        before = None if stage.release_id is None else self._settings.read(processor, stage.release_id)
        rollout = self._with_settings(rollout, stage)
        others = before is not None and before != self._settings.read(processor, str(stage.release_id))
        began = time.monotonic()
        try:
            done = deploy(
                rollout,
                self._world,
                timeout_s=stage.timeout_s,
                who=self._who,
                progress=_progress(tell),
                settle_s=stage.settle_s,
                hold=_goes_back(stage) or others,
            )
        except DeploymentFailed as failed:
            if stage.release_id is None:
                raise
            if before is not None:
                self._settings.write(processor, stage.release_id, before)
            raise self._go_back(processor, stage, failed, began, tell, others=others) from failed
        self.result = done
        if stage.release_id is not None and not stage.paused:
            book = self._world.registry.releases
            ran = book.working(processor)
            newest = not stage.earlier and (ran is None or ran.release_id != stage.release_id)
            book.works(processor, stage.release_id, self._world.clock(), newest=newest)
            self._releases.prune(processor, [stage.release_id])
        how = "paused, " if stage.paused else ""
        started = f"slot {', '.join(done.started)} started" if done.started else "it already ran"
        restored = sum(task.restored for each in done.statuses.values() for task in each.tasks)
        return Done(f"version {done.code_version} runs on every partition ({how}{started})", restored)

    def _with_settings(self, rollout: Rollout, stage: RunProcessor) -> Rollout:
        """Returns ``rollout`` (how to run the version) with the settings that this stage needs.

        For a stage with fresh settings, these are the present settings, which are also recorded. For all other
        stages, ``rollout`` is returned unchanged.
        """
        if self._present is None or not stage.fresh_settings or stage.release_id is None:
            return rollout
        present = self._present()
        self._settings.record(rollout.processor, stage.release_id, present)
        own = {name: rollout.environment[name] for name in _OF_RELEASE if name in rollout.environment}
        return replace(rollout, environment={**present, **own})

    def _go_back(  # tidy: allow-wide because all parameters describe one failed deployment
        self,
        processor: str,
        stage: RunProcessor,
        failed: DeploymentFailed,
        began: float,
        tell: ProgressLog,
        *,
        others: bool = False,
    ) -> ApplyFailed:
        """Start the previous release again after a failure; returns the error to raise.

        ``others`` is true if the failed deploy changed the settings of the release. If there is no earlier release, the
        same release is then started again with its former settings.
        """
        failure = f"Version {stage.code_version} of {processor} did not start working: {failed.message}"
        if not _goes_back(stage) and not others:
            return RollbackFailed(
                f"{failure} There is no former version that could be started again; recovery keeps retrying this one.",
                action=f"{failed.action} To stop it: `holdfast apply stop {processor}`.",
                **failed.fields,
            )
        back = stage.back_to or stage.release_id
        assert back is not None
        former = replace(self._rollout(processor, back), together=stage.together)
        former = replace(former, slots=stage.back_slots or former.slots, rescale=stage.rescale)
        workers = count_of(len(former.slots), "worker")
        tell(f"{failure.splitlines()[0]} Rolling back to version {former.code_version} in {workers}")
        try:
            self.result = deploy(
                former, self._world, timeout_s=max(BACK_S, stage.timeout_s), who=self._who, progress=_progress(tell)
            )
        except DeploymentFailed as again:
            return RollbackFailed(
                f"{failure} The rollback to version {former.code_version} failed, too: {again.message}",
                action=again.action,
                **{**failed.fields, "works": None},
            )
        self._world.registry.releases.works(processor, back, self._world.clock())
        return RolledBack(
            f"{failure} Version {former.code_version} was started again and works on every partition in {workers}, "
            f"{time.monotonic() - began:.0f} s after the deployment of {stage.code_version} began; nothing is lost.",
            action=failed.action,
            **{**failed.fields, "works": former.code_version},
        )

    def stop(self, processor: str, *, for_good: bool) -> Done:
        """Stop all workers after a final commit; ``for_good`` records the stop, so that recovery starts no worker."""
        stopped = stop(processor, self._world, who=self._who) if for_good else self._stop_for_now(processor)
        return Done(f"slot {', '.join(stopped)} stopped" if stopped else "no slot had a process")

    def adopt(self, processor: str, stage: AdoptDeployment) -> Done:
        """Record a deployment that is missing in Holdfast's registry; no worker is restarted."""
        registry, now, release = self._world.registry, self._world.clock(), stage.release
        if release is not None:
            columns = {name: release[name] for name in ("target", "folder", "shape")}
            name = release["release_id"]
            registry.releases.record(processor, name, code_version=stage.code_version, **columns, now=now)
            if release["worked"]:
                registry.releases.works(processor, name, now)
        known = registry.deployment(processor)
        if known is None or known.generation <= stage.after:
            known = registry.record_deployment(
                processor, stage.code_version, stage.slots, now, desired=stage.desired, after=stage.after
            )
        keep_mark(registry, self._world.paths, processor)
        return Done(f"version {known.code_version} recorded as {known.desired}, generation {known.generation}")

    def _stop_for_now(self, processor: str) -> tuple[str, ...]:
        """Stop all workers, which a later stage of the same plan starts again.

        Until that stage, Holdfast's registry has the state "deploying", so that recovery starts no worker.
        """
        deployment = self._world.registry.deployment(processor)
        if deployment is None or not self._world.deployer.running():
            return ()
        self._world.registry.record_deployment(
            processor, deployment.code_version, deployment.slots, self._world.clock(), desired="deploying"
        )
        keep_mark(self._world.registry, self._world.paths, processor)
        gone = remove_others(processor, deployment.slots, self._world)
        known = self._world.deployer.programs()
        names = {slot: self._world.paths.program(processor, slot) for slot in deployment.slots}
        alive = [slot for slot, name in names.items() if name in known and known[name].alive]
        for slot in alive:
            self._world.deployer.stop_program(names[slot])
        return (*gone, *alive)


def _goes_back(stage: RunProcessor) -> bool:
    """Whether the earlier deployment is started again after a failed start.

    True if the earlier deployment had other code or other slots (places of workers), and can be started.
    """
    others = bool(stage.back_slots) and set(stage.back_slots) != set(stage.slots or stage.back_slots)
    return stage.back_to is not None or (others and stage.release_id is not None)


def options_of(stage: RunProcessor, changelog_ids: Mapping[str, str]) -> tuple[str, ...]:
    """The command-line arguments with which a stage (step) of a plan starts workers.

    ``--begin-empty`` has the topic id of a store's changelog. The worker starts with an empty store only if the
    changelog still has this id.
    """
    options: tuple[str, ...] = ("--paused",) if stage.paused else ()
    if stage.restore_from != "newest":
        options += ("--restore-from", stage.restore_from)
    for store in stage.reseed:
        options += ("--reseed", store)
    for store in stage.begin_empty:
        if store in changelog_ids:
            options += ("--begin-empty", f"{store}={changelog_ids[store]}")
    return options


def _progress(tell: ProgressLog) -> Callable[[Progress], None]:
    return lambda now: tell(now.sentence)
