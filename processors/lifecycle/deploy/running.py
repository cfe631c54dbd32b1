"""Starting and stopping processors for a plan's stages, through the deployer (``execution.Runner``).

Invariants:
    - A worker that runs as it is asked to is left as it is, so that a stage that is done again changes nothing.
    - A release that does not come to work is replaced by the one that it came from, before the failure is told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from holdfast.infra.database.records import Release
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.lifecycle.deploy.deployment import (
    DeploymentFailed,
    DeploymentResult,
    Progress,
    Rollout,
    deploy,
    stop,
)
from holdfast.processors.lifecycle.deploy.releases import Code, ReleaseFailed, ReleaseFolders
from holdfast.processors.lifecycle.plans.apply import ApplyFailed, Done, Tell
from holdfast.processors.lifecycle.plans.shape import Shape, from_document
from holdfast.processors.lifecycle.plans.stages import MakeRelease, RunProcessor
from holdfast.processors.lifecycle.ports import World

#: How long the former version may take until it works again, seconds.
BACK_S = 300.0


class RolledBack(ApplyFailed):
    """A version did not come to work, and the former one works again; fields as of DeploymentFailed, and ``works``."""


class RollbackFailed(ApplyFailed):
    """A version did not come to work, and the former one does not work again either, or there is none."""


class Described(Protocol):
    """What is known of topics."""

    def describe(self, names: list[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""
        ...


def rollout_of_release(
    release: Release, topics: Described, slots: tuple[str, ...], environment: Mapping[str, str], project: Path
) -> Rollout:
    """How a processor runs from a release.

    Args:
        release: The release.
        topics: Its inputs are looked up here.
        slots: Its slots.
        environment: Settings as variables.
        project: The folder that processors are started in.
    """
    names = list(from_document(release.shape).inputs)
    facts = topics.describe(names)
    return Rollout(
        processor=release.processor,
        code_version=release.code_version,
        slots=slots,
        inputs={name: facts[name].partitions for name in names if name in facts},
        # Its own definition alone: another one's mistakes, or another name for it by now, do not hinder it.
        environment={**environment, "HOLDFAST_PROCESSORS": json.dumps([release.target])},
        project=project,
        release=None if release.folder is None else Path(release.folder),
    )


class DeployedProcessors:
    """Processors under a deployer.

    Args:
        world: What deploying acts through.
        rollout: How a processor is meant to run: a release of it, or what is deployed (None).
        who: Recorded with each action.
        code: The files of a processor's definition, and what it is made of now.
    """

    def __init__(
        self,
        world: World,
        rollout: Callable[[str, str | None], Rollout],
        who: str,
        code: Callable[[str], tuple[Code, Shape]],
    ) -> None:
        self._world = world
        self._rollout = rollout
        self._who = who
        self._code = code
        self._releases = ReleaseFolders(world.registry.releases, world.paths)
        #: What the last deployment came to, for whoever tells of it.
        self.result: DeploymentResult | None = None

    def make_release(self, processor: str, stage: MakeRelease) -> Done:
        """See ``execution.Runner.make_release``."""
        code, shape = self._code(processor)
        made = self._releases.make(processor, stage.release_id, code, shape, self._world.clock())
        if made.folder is None:
            return Done(f"release {made.release_id} recorded; its code is not copied: {code.why_not}")
        return Done(f"release {made.release_id} in {made.folder}: {len(code.files)} file(s)", len(code.files))

    def run(self, processor: str, stage: RunProcessor, tell: Tell) -> Done:
        """See ``execution.Runner.run``."""
        rollout = replace(self._rollout(processor, stage.release_id), options=options_of(stage))
        if rollout.code_version != stage.code_version:
            raise ReleaseFailed(
                f"Version {stage.code_version} of {processor} was to be run, but {rollout.code_version} is there.",
                action="Look at the plan as it is now, and apply that one.",
                processor=processor,
                seen=rollout.code_version,
                expected=stage.code_version,
            )
        began = time.monotonic()
        try:
            done = deploy(
                rollout,
                self._world,
                timeout_s=stage.timeout_s,
                who=self._who,
                progress=_progress(tell),
                settle_s=stage.settle_s,
                hold=stage.back_to is not None,
            )
        except DeploymentFailed as failed:
            if stage.release_id is None:
                raise
            raise self._go_back(processor, stage, failed, began, tell) from failed
        self.result = done
        if stage.release_id is not None and not stage.paused:
            self._world.registry.releases.works(processor, stage.release_id, self._world.clock())
            self._releases.prune(processor, [stage.release_id])
        how = "paused, " if stage.paused else ""
        started = f"slot {', '.join(done.started)} started" if done.started else "it ran already"
        restored = sum(int(getattr(task, "restored", 0)) for each in done.statuses.values() for task in each.tasks)
        return Done(f"version {done.code_version} works on every partition ({how}{started})", restored)

    def _go_back(
        self, processor: str, stage: RunProcessor, failed: DeploymentFailed, began: float, tell: Tell
    ) -> ApplyFailed:
        """Start the former release again; what is to be told in the end."""
        said = f"Version {stage.code_version} of {processor} did not come to work: {failed.message}"
        if stage.back_to is None:
            return RollbackFailed(
                f"{said} There is no former version that could be started again; recovery goes on trying this one.",
                action=f"{failed.action} To have it down: holdfast apply stop {processor}.",
                **failed.fields,
            )
        former = self._rollout(processor, stage.back_to)
        tell(f"{said.splitlines()[0]} Going back to version {former.code_version}")
        try:
            self.result = deploy(
                former, self._world, timeout_s=max(BACK_S, stage.timeout_s), who=self._who, progress=_progress(tell)
            )
        except DeploymentFailed as again:
            return RollbackFailed(
                f"{said} Going back to version {former.code_version} failed, too: {again.message}",
                action=again.action,
                **{**failed.fields, "works": None},
            )
        self._world.registry.releases.works(processor, stage.back_to, self._world.clock())
        return RolledBack(
            f"{said} Version {former.code_version} was started again and works on every partition, "
            f"{time.monotonic() - began:.0f} s after {stage.code_version} was begun with; nothing is lost.",
            action=failed.action,
            **{**failed.fields, "works": former.code_version},
        )

    def stop(self, processor: str, *, for_good: bool) -> Done:
        """See ``execution.Runner.stop``."""
        stopped = stop(processor, self._world, who=self._who) if for_good else self._stop_for_now(processor)
        return Done(f"slot {', '.join(stopped)} stopped" if stopped else "nothing ran")

    def _stop_for_now(self, processor: str) -> tuple[str, ...]:
        """Stop what is to be started again by the same plan: recovery keeps its hands off meanwhile."""
        deployment = self._world.registry.deployment(processor)
        if deployment is None or not self._world.deployer.running():
            return ()
        self._world.registry.record_deployment(
            processor, deployment.code_version, deployment.slots, self._world.clock(), desired="deploying"
        )
        known = self._world.deployer.programs()
        names = {slot: self._world.paths.program(processor, slot) for slot in deployment.slots}
        alive = [slot for slot, name in names.items() if name in known and known[name].alive]
        for slot in alive:
            self._world.deployer.stop_program(names[slot])
        return tuple(alive)


def options_of(stage: RunProcessor) -> tuple[str, ...]:
    """The arguments of a worker that runs as a stage asks."""
    options: tuple[str, ...] = ("--paused",) if stage.paused else ()
    if stage.restore_from != "newest":
        options += ("--restore-from", stage.restore_from)
    for store in stage.reseed:
        options += ("--reseed", store)
    for store in stage.begin_empty:
        options += ("--begin-empty", store)
    return options


def _progress(tell: Tell) -> Callable[[Progress], None]:
    return lambda now: tell(now.sentence)
