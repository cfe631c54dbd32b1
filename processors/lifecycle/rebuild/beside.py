"""The stages that rebuild a store beside its running processor, and then replace the old store (cut over).

    start ──► wait: follow the processor's commits ──► [pause] finish: up to the last commit ──► adopt ──► [resume]

A *shadow* is a second run of the processor's functions, as a separate program (``Application.shadow``).

Invariants:
    - The shadow reads only up to offsets that the processor has committed, so it is never ahead of the processor.
    - The processor adopts the shadow's store only while both have committed the same offsets and the processor is
      paused.
    - Each stage first makes sure that its preconditions hold: it restarts a dead shadow or worker, and compares
      offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.infra.database.errors import HoldLost
from holdfast.infra.errors import HoldfastError
from holdfast.infra.log import get_logger
from holdfast.processors.engine.runtime.owner_commands.commands import CommandFailed, CommandRefused, Offsets
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.engine.serving.worker_client import ProcessorClient, ProcessorSilent
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.deploy.deployment import what_is_missing
from holdfast.processors.lifecycle.deploy.keep_or_replace import POLL_S, look
from holdfast.processors.lifecycle.deploy.present import slots_at_work
from holdfast.processors.lifecycle.plans.apply import Done, ProgressLog
from holdfast.processors.lifecycle.plans.stages import (
    AdoptStore,
    FinishShadow,
    PauseProcessor,
    RemoveShadow,
    ResumeProcessor,
    RunProcessor,
    ShadowStage,
    StartShadow,
    WaitForShadow,
)
from holdfast.processors.lifecycle.ports import NotStarted
from holdfast.processors.lifecycle.rebuild.exchange import Exchange
from holdfast.processors.lifecycle.rebuild.shadow import START_S, Machine, ShadowFailed, ShadowProgram

log = get_logger(__name__)

Result = TypeVar("Result")

#: Maximum seconds to wait until a paused worker has committed all records that it has read.
STILL_S = 120.0
#: The shadow (second run of the functions) has caught up if it is at most this many records behind the processor.
BEHIND_RECORDS = 10_000
#: A shadow (second run) that is further behind has caught up, too, if it will read the rest within these seconds.
BEHIND_S = 2.0
#: Maximum number of consecutive interrupted attempts without progress; then the stage of the plan fails.
BREAKS_MAX = 5
#: Seconds between two progress messages, and seconds between two checks of the workers.
TELL_EVERY_S = 1.0
LOOK_AFTER_EVERY_S = 5.0

#: Errors after which a request is sent again. A dead worker can be the cause of such an error. It is started before
#: the request is sent again.
_BROKEN_OFF = (CommandFailed, CommandRefused, ProcessorSilent)


class ProcessorPaused(HoldfastError):
    """A cut-over failed while the processor is paused, so the processor reads no input. Fields: ``processor``."""


class Rebuilding:
    """Carries out the stages (steps) of a plan that rebuild a store. Implements ``execution.Shadows``."""

    def __init__(self, machine: Machine) -> None:
        self._on = machine
        self._shadow = ShadowProgram(machine)
        #: Function that returns the name of the present stage. Workers recognize a repeated command by this name.
        self.once = machine.once

    def __call__(self, processor: str, stage: ShadowStage, tell: ProgressLog) -> Done:
        """Carry out one stage of a plan; the result is a text with counts."""
        match stage:
            case StartShadow():
                return self._shadow.create(processor, stage.store, tell)
            case WaitForShadow():
                return self.wait(processor, stage, tell)
            case PauseProcessor():
                return self.pause(processor, stage, tell)
            case FinishShadow():
                return self.loudly(processor, lambda: self._finish(processor, stage.store, tell))
            case AdoptStore():
                return self.loudly(processor, lambda: self._adopt(processor, stage, tell))
            case ResumeProcessor():
                return self.loudly(processor, lambda: self.resume(processor, stage, tell), unless=NotStarted)
            case RemoveShadow():
                return self._shadow.remove(processor, stage.store)

    def wait(self, processor: str, stage: WaitForShadow, tell: ProgressLog) -> Done:
        """Run the shadow (second run of the functions) until it has nearly reached the processor's committed offsets.

        Raises:
            CommandFailed, CommandRefused, ProcessorSilent: ``BREAKS_MAX`` consecutive attempts made no progress.
        """
        began, read, breaks = time.monotonic(), 0, 0
        while True:
            bounds = self._committed(processor, stage.store)
            before = _total(self._reached(processor, stage.store, bounds))
            rounds = time.monotonic()
            try:
                client = self._shadow.running(processor, stage.store, tell)
                client.until(bounds, tell=self.telling(processor, rounds, tell))
            except _BROKEN_OFF as broken:
                got = _total(self._reached(processor, stage.store, bounds)) - before
                breaks, read = (0 if got else breaks + 1), read + got
                if breaks >= BREAKS_MAX:
                    raise
                tell(f"the shadow was interrupted: {broken.message} It is asked again")
                time.sleep(POLL_S)
                continue
            got, took = _total(bounds) - before, time.monotonic() - rounds
            read, breaks = read + got, 0
            behind = _total(self._committed(processor, stage.store)) - _total(bounds)
            rate = got / took if took > 0 else 0.0
            self._look_after(processor, tell)
            if behind <= BEHIND_RECORDS or behind <= BEHIND_S * rate:
                seconds = max(time.monotonic() - began, 0.001)
                return Done(f"{read:,} records read, {read / seconds:,.0f} per second; {behind:,} are left", read)
            tell(f"{behind:,} new records to read; the shadow reads {rate:,.0f} per second")

    def pause(self, processor: str, stage: PauseProcessor, tell: ProgressLog) -> Done:
        """Pause every worker, and wait until all records that it has read are committed."""
        offsets = self.stand_still(processor, tell)
        return Done(f"{processor} is paused; it reads no input and sends no output; {offsets} partitions are committed")

    def resume(self, processor: str, stage: ResumeProcessor, tell: ProgressLog) -> Done:
        """Resume every worker, and wait until all partitions are processed.

        Raises:
            NotStarted: A worker did not start. All workers that answer read their inputs again.
        """
        for slot in self.slots(processor):
            client = self._on.client(processor, slot)
            if client.status() is not None:
                # A worker that ends at each start may end between the two requests. The runner starts it again.
                with suppress(ProcessorSilent):
                    client.resume()
        self._on.runner.run(processor, RunProcessor(stage.says, self._version(processor), START_S), tell)
        for slot in self.slots(processor):
            client = self._on.client(processor, slot)
            status = client.status()
            if status is not None and status.paused:
                client.resume()
        return Done(f"{processor} reads its inputs again")

    # -- replace the processor's store by the shadow's store ------------------------------------------

    def _finish(self, processor: str, store: str, tell: ProgressLog) -> Done:
        self.stand_still(processor, tell)
        bounds = self._committed(processor, store)
        self._check_all_known(processor, store, bounds)
        before = _total(self._reached(processor, store, bounds))

        def ask() -> None:
            self._shadow.running(processor, store, tell).until(bounds, tell=self.telling(processor, None, tell))

        self.patiently(ask, tell)
        reached = self._reached(processor, store, bounds)
        if reached != bounds:
            raise ShadowFailed(
                f"The shadow of {store} has committed {reached}, but {processor} has committed {bounds}.",
                action="Run `holdfast apply resume N`, which compares the offsets again.",
                processor=processor,
                store=store,
            )
        self._shadow.stop(processor, store)
        read = _total(bounds) - before
        said = ", ".join(f"{topic}[{n}]={at}" for topic, each in bounds.items() for n, at in list(each.items())[:4])
        return Done(f"the shadow read the last {read:,} records, and both have committed {said}", read)

    def _adopt(self, processor: str, stage: AdoptStore, tell: ProgressLog) -> Done:
        store = stage.store
        made = Exchange(processor, export=stage.export, once=self._on.once())
        return self.adopt_by(lambda: self._adopt_all(processor, store, made, tell), made, (store, "the shadow's"), tell)

    def adopt_by(self, act: Callable[[], None], made: Exchange, names: tuple[str, str], tell: ProgressLog) -> Done:
        """Call ``act``, which makes a store equal to a changelog, and call it again after an interruption.

        ``act`` counts the changed entries in ``made``. The result has these counts as a text.
        """

        def attempt() -> None:
            made.begin()
            act()

        self.patiently(attempt, tell)
        return Done(made.said(*names), made.units)

    def _adopt_all(self, processor: str, store: str, made: Exchange, tell: ProgressLog) -> None:
        self.stand_still(processor, tell)
        bounds = self._committed(processor, store)
        if self._reached(processor, store, bounds) != bounds:
            tell(f"{processor} has committed more input; the shadow reads it too")
            self._finish(processor, store, tell)
            bounds = self._committed(processor, store)
        topology = self._on.shadow(processor, store)
        changelog = topology.changelog_of(store)
        assert changelog is not None
        inputs = {spec.name for spec in topology.inputs}
        for number, held in self.take_over(processor, (store, inputs), changelog.name, made, tell).items():
            expected = {topic: each[number] for topic, each in bounds.items() if number in each}
            if held and held != expected:
                raise self._parted(processor, store, held, expected)
        if (now := self._committed(processor, store)) != bounds:
            raise self._parted(processor, store, bounds, now)

    def take_over(
        self,
        processor: str,
        of: tuple[str, set[str]],
        changelog: str,
        made: Exchange,
        tell: ProgressLog,
    ) -> dict[int, Mapping[str, int]]:
        """Let every owner (worker) change its store until it equals the content of ``changelog``.

        Args:
            processor: The name of the processor.
            of: The store, and the inputs that the store is built from.
            changelog: A changelog of the shadow or of loaded data, which no process writes at this time.
            made: The request of the exchange; this call adds the counts and export files to it.
            tell: Receives progress messages.

        Returns:
            Partition -> input topic -> input offset of the state in ``changelog``.
        """
        store, inputs = of
        ends = self._on.topics.settled_end_offsets(changelog)
        held: dict[int, Mapping[str, int]] = {}
        for slot in self.slots(processor):
            client = self._on.client(processor, slot)
            tasks = self._status(client).tasks
            owned = sorted(task.partition for task in tasks if inputs & set(task.inputs) and task.partition in ends)
            if not owned:
                continue
            tell(f"slot {slot} {'writes its keys to a file, and ' * (made.export is not None)}takes over {store}")
            upto = {number: ends[number] for number in owned}
            result = client.adopt(store, changelog, upto, tell=self.telling(processor, None, tell), **made.asked())
            made.add(result)
            held |= {int(number): each for number, each in result["inputs"].items()}
        return held

    def _parted(self, processor: str, store: str, held: object, expected: object) -> ShadowFailed:
        return ShadowFailed(
            f"{store} was given the content of offsets {held}, but {processor} has committed {expected}.",
            action="Run `holdfast apply resume N`, which adopts the store again at the current offsets.",
            processor=processor,
            store=store,
        )

    def loudly(self, processor: str, act: Callable[[], Done], *, unless: type[HoldfastError] | tuple[()] = ()) -> Done:
        """Calls ``act``; if it fails, raises an error that also says that the processor is paused.

        ``unless`` is an error after which the processor is not paused. It is raised unchanged.

        Raises:
            ProcessorPaused: ``act`` failed.
        """
        try:
            return act()
        except HoldLost:
            raise
        except unless:
            raise
        except HoldfastError as failed:
            raise ProcessorPaused(
                f"{processor} IS PAUSED and reads no input: a cut-over stopped in the middle. {failed.message}",
                action="Run `holdfast apply resume N` to finish the cut-over, or `holdfast apply abandon N --reason "
                f"WHY` to let {processor} read again. {failed.action}",
                processor=processor,
            ) from failed

    # -- the processor's own workers -------------------------------------------------------------------------------

    def stand_still(self, processor: str, tell: ProgressLog) -> int:
        """Start dead workers, pause every worker, and wait until all records that they have read are committed.

        Returns:
            The number of input partitions.

        Raises:
            ShadowFailed: A partition was not committed within ``STILL_S``.
        """
        inputs = self._on.rollout(processor).inputs
        deadline = time.monotonic() + STILL_S
        began = False
        while True:
            statuses = {slot: self._on.client(processor, slot).status() for slot in self.slots(processor)}
            if any(status is None for status in statuses.values()) or not statuses:
                self._start_paused(processor, tell)
                continue
            for slot, status in statuses.items():
                if status is not None and not status.paused:
                    self._on.client(processor, slot).pause()
            missing = what_is_missing(inputs, statuses)
            if began and not missing and all(_stands(status) for status in statuses.values() if status is not None):
                return sum(inputs.values())
            began = True
            if time.monotonic() > deadline:
                listed = ", ".join(f"{topic}[{number}]" for topic, number in missing[:5]) or "the records it has read"
                raise ShadowFailed(
                    f"{processor} was paused, but did not commit {listed} within {STILL_S:.0f} s.",
                    action=f"Read `holdfast status` and the log of {processor}, then run `holdfast apply resume N`.",
                    processor=processor,
                )
            tell(f"{processor} is paused, and commits the records it has read")
            time.sleep(POLL_S)

    def _start_paused(self, processor: str, tell: ProgressLog) -> None:
        tell(f"a worker of {processor} does not run; it is started, paused")
        says = f"start {processor} paused"
        self._on.runner.run(processor, RunProcessor(says, self._version(processor), START_S, paused=True), tell)

    def _look_after(self, processor: str, tell: ProgressLog) -> None:
        """Start dead workers again. An apply (execution of a plan) is open, so recovery does not start them."""
        for slot in self.slots(processor):
            program, _ = look(slot, processor, self._on.world)
            if program is None or not program.alive:
                tell(f"slot {slot} of {processor} died; it is started again")
                says = f"start {processor} again"
                self._on.runner.run(processor, RunProcessor(says, self._version(processor), START_S), tell)
                return

    def _committed(self, processor: str, store: str) -> dict[str, dict[int, int]]:
        """Maps each input topic of the store and its partitions to the offset that the processor has committed."""
        return self._offsets(processor, self._on.shadow(processor, store))

    def _reached(self, processor: str, store: str, bounds: Offsets) -> dict[str, dict[int, int]]:
        """Maps topic and partition to the offset that the shadow (second run) has committed; 0 without a commit."""
        topology = self._on.shadow(processor, store)
        found = self._offsets(topology.processor, topology)
        return {
            topic: {number: found.get(topic, {}).get(number, 0) for number in each} for topic, each in bounds.items()
        }

    def _offsets(self, group: str, topology: Topology) -> dict[str, dict[int, int]]:
        inputs = {spec.name for spec in topology.inputs}
        found: dict[str, dict[int, int]] = {}
        for place, offset in sorted(self._on.topics.committed_offsets(group).items()):
            if place.topic in inputs:
                found.setdefault(place.topic, {})[place.number] = offset
        return found

    def _check_all_known(self, processor: str, store: str, bounds: Offsets) -> None:
        counts = self._on.rollout(processor).inputs
        for spec in self._on.shadow(processor, store).inputs:
            missing = set(range(counts.get(spec.name, 0))) - set(bounds.get(spec.name, {}))
            if missing:
                raise ShadowFailed(
                    f"{processor} has no committed offset of {spec.name}[{min(missing)}], "
                    "so the shadow has no end offset.",
                    action="Wait until `holdfast status` shows every partition, then run `holdfast apply resume N`.",
                    processor=processor,
                    store=store,
                )

    def slots(self, processor: str) -> tuple[str, ...]:
        """The slots (worker processes) whose workers own the processor's partitions; empty if it is not deployed."""
        return slots_at_work(processor, self._on.world)

    def _version(self, processor: str) -> str:
        found = self._on.world.registry.deployment(processor)
        return "" if found is None else found.code_version

    def _status(self, client: ProcessorClient) -> ProcessorStatus:
        status = client.status()
        if status is None:
            raise ProcessorSilent(
                f"Processor {client.processor} (slot {client.slot}) does not answer.",
                action=f"Read `holdfast status` and the log of {client.processor}.",
                processor=client.processor,
            )
        return status

    # -- requests and progress ----------------------------------------------------------------------------------------

    def telling(self, processor: str, since: float | None, tell: ProgressLog) -> Callable[[Mapping[str, Any]], None]:
        """Returns a function that reports the number of processed records, and the records per second.

        The function also starts dead workers of the processor again, unless ``since`` is None. ``since`` is None while
        the processor is paused.
        """
        told = looked = 0.0
        began = since or time.monotonic()

        def heard(ticket: Mapping[str, Any]) -> None:
            nonlocal told, looked
            now = time.monotonic()
            if now - told >= TELL_EVERY_S:
                told, done, total = now, int(ticket["done"]), int(ticket["total"] or 0)
                rate = done / max(now - began, 0.001)
                left = f", about {(total - done) / rate:,.0f} s left" if rate > 0 and total > done else ""
                of = f" of {total:,}" if total else ""
                tell(f"{done:,}{of} records read, {rate:,.0f} per second{left}")
            if since is not None and now - looked >= LOOK_AFTER_EVERY_S:
                looked = now
                self._look_after(processor, tell)

        return heard

    def patiently(self, act: Callable[[], Result], tell: ProgressLog) -> Result:
        """Calls ``act`` and returns its result; after an interruption, calls it again.

        The last error is raised after ``BREAKS_MAX`` interruptions.
        """
        for _ in range(BREAKS_MAX):
            try:
                return act()
            except _BROKEN_OFF as broken:
                tell(f"the request was interrupted: {broken.message} It is sent again")
                time.sleep(POLL_S)
        return act()


def _total(offsets: Offsets) -> int:
    return sum(sum(each.values()) for each in offsets.values())


def _stands(status: ProcessorStatus) -> bool:
    """Whether a worker is paused and has committed all records that it has read."""
    inputs: Sequence[Any] = [at for task in status.tasks for at in task.inputs.values()]
    return status.paused and all(at.committed is not None and at.committed == at.position for at in inputs)
