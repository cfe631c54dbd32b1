"""Plays one round: an operator runs a command, one process is killed or frozen, and others take over its work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import dagster as dg
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.infra.database.lease_times import SILENT_S
from holdfast.infra.system.holders import is_gone
from holdfast.infra.waiting import Deadline
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.stages import RunProcessor, StopProcessor
from tests.dagster.rounds.draws import PARTITIONS, Draw
from tests.dagster.rounds.history import Event, RunEvent
from tests.dagster.rounds.installation import Daemon, Installation

#: Maximum seconds until no command, run or incident of a round is open.
ROUND_S = 600.0
#: Seconds for which the operator waits until the processor is free. After that, the command is repeated anyway.
FREE_S = 90.0
#: Pause between two reads of the recorded changes, in seconds.
LOOK_S = 0.02
#: Maximum number of repetitions of one command.
TIMES = 15

FINISHED = tuple(
    each
    for each in dg.DagsterRunStatus
    if each not in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
)


class NotQuiet(AssertionError):
    """Raised if a command, run or incident of a round is still open when the time limit of the round has passed."""


@dataclass(frozen=True)
class Step:
    """One command of the operator, and an action to take before it."""

    words: tuple[str, ...]
    before: Callable[[], None] = lambda: None


@dataclass
class Round:
    """The state of a round while it is played."""

    here: Installation
    draw: Draw
    events: list[Event] = field(default_factory=list)
    runs: list[RunEvent] = field(default_factory=list)
    #: Events of the round for the report, one line each.
    said: list[str] = field(default_factory=list)
    #: The holders that were killed, and the runs whose process was killed.
    killed: set[str] = field(default_factory=set)
    struck_at: float | None = None
    thawed: bool = False
    _due_at: float | None = None
    _seq: int = 0
    _run_seq: int = 0
    _first: int = 0
    _struck_seq: int = 0
    _operator: subprocess.Popen[bytes] | None = None
    _frozen: subprocess.Popen[bytes] | None = None
    _pids: tuple[int, ...] = ()
    _worker_killed: bool = False
    _deadline: Deadline = field(default_factory=lambda: Deadline(ROUND_S))

    def play(self) -> None:
        """Play the round until no command, run or incident is open."""
        before = self.here.history.events()
        self._seq = self._first = before[-1].seq if before else 0
        runs = self.here.history.runs()
        self._run_seq = runs[-1].seq if runs else 0
        if self.draw.incident == "before":
            self._kill_worker()
        if self.draw.recovery_first:
            self._until(lambda: any(e.kind == "incident" and e.holding for e in self.events), "a run claims")
        for step in self.script():
            self._carry_out(step)
        self._finish()

    def script(self) -> Sequence[Step]:
        """The operator's commands in this round."""
        group, draw = self.here.operated.group, self.draw
        apply: dict[str, tuple[Step, ...]] = {
            "deploy": (Step(("deploy", group), self.here.change_code),),
            "provision": (Step(("provision", group), self._drift),),
            "compact": (Step(("compact", group)),),
            "clear key": (Step(("clear", group, "--key", draw.key, "--yes")),),
            "clear partition": (
                Step(("clear", group, "--prefix", "key-", "--partition", str(draw.partition), "--yes")),
            ),
            "restore": (Step(("restore", group)),),
            "stop and deploy": (Step(("stop", group)), Step(("deploy", group))),
            "reposition": (
                Step(("stop", group)),
                Step(("reposition", group, "--yes"), self._reset),
                Step(("deploy", group)),
            ),
        }
        return apply[draw.verb]

    # --- steps of the operator -----------------------------------------------------------------------------

    def _carry_out(self, step: Step) -> None:
        step.before()
        since = max((each.id for each in self.here.registry.journal.applies(1)), default=0)
        for _ in range(TIMES):
            code = self._command(step)
            if code == 0 or self._is_done(step, since):
                return
            self._until_free()
            if self._is_done(step, since):
                return
        raise NotQuiet(self._story(f"`{' '.join(step.words)}` was not done in {TIMES} tries"))

    def _command(self, step: Step) -> int | None:
        """Run the command. Returns its exit code, or None if its process was frozen."""
        process = self._operator = self.here.operated.command("apply", *step.words)
        while process.poll() is None and self._frozen is not process:
            self._look()
        if self._frozen is process:
            return None
        assert process.stdout is not None
        output = process.stdout.read().decode(errors="replace").strip()
        self._operator = None
        self.said.append(f"apply {' '.join(step.words)}: exit {process.returncode}: {_end(output)}")
        return process.returncode

    def _is_done(self, step: Step, since: int) -> bool:
        applies = self.here.registry.journal.applies(50, processor=self.here.operated.group)
        return any(each.id > since and each.verb == step.words[0] and each.outcome == "done" for each in applies)

    def _until_free(self) -> None:
        """Wait until the operator can run a command.

        This is possible if an interrupted apply (execution of a plan) can be resumed. Otherwise no process may hold the
        processor, and its worker must run.
        """
        free, deadline = self._is_free, Deadline(FREE_S)
        while not free() and not deadline.passed:
            self._look()

    def _is_free(self) -> bool:
        group, registry = self.here.operated.group, self.here.registry
        if self._frozen is not None and self.draw.thaw == "before" and not self.thawed:
            return False
        begun = registry.journal.applies(1, processor=group, open_only=True)
        if any(each.is_live and not is_gone(each.holder or "") for each in begun):
            return False
        if any(each.is_worked_on for each in registry.open_incidents()):
            return False
        desired = registry.deployment(group)
        stopped = desired is not None and desired.desired == "stopped"
        # recovery restarts the worker, unless the interrupted command will start it
        mended_by_us = any(_starts(each.plan) for each in begun)
        return mended_by_us or stopped or self._runs()

    def _runs(self) -> bool:
        status = self.here.operated.client.status()
        return status is not None and status.phase == "running" and len(status.tasks) == PARTITIONS

    def _drift(self) -> None:
        self.here.operated.topics.alter(self.here.operated.changelog, {"segment.ms": "86400000"})

    def _reset(self) -> None:
        """Reset the group's offsets to the start. This is a mistake that an operator could make."""
        group = self.here.operated.group
        at = [TopicPartition(f"{group}-in", number, 0) for number in range(PARTITIONS)]
        admin = AdminClient({"bootstrap.servers": self.here.operated.topics.bootstrap})

        def reset() -> bool:
            try:
                for answer in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, at)]).values():
                    answer.result(10)
            except Exception as busy:  # for a moment after its end, the worker is still a group member
                self.said.append(f"offsets not reset yet: {busy}")
                return False
            return True

        self._until(reset, "the group is empty, and its offsets are reset")

    # --- events during the round ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Read new events. When the drawn moment has come, kill or freeze the victim, or let it continue."""
        time.sleep(LOOK_S)
        if self._deadline.passed:
            raise NotQuiet(self._story(f"no end in {ROUND_S:g} s"))
        self._read()
        if self.draw.incident == "during" and not self._worker_killed and self._signs("apply") >= self.draw.at:
            self._kill_worker()
        if self.struck_at is None and self._is_due():
            self._due_at = self._due_at or time.monotonic()
            if time.monotonic() >= self._due_at + self.draw.later_s:
                self._strike()
        if self.struck_at is not None and not self.thawed and self._may_go_on():
            self._go_on()

    def _read(self) -> None:
        """Read the changes that were recorded since the last read."""
        new = self.here.history.events(self._seq)
        self.events += new
        self._seq = new[-1].seq if new else self._seq
        runs = self.here.history.runs(self._run_seq)
        self.runs += runs
        self._run_seq = runs[-1].seq if runs else self._run_seq

    def _signs(self, kind: str) -> int:
        return sum(each.kind == kind and each.holding is not None for each in self.events)

    def _is_due(self) -> bool:
        match self.draw.victim:
            case "operator":
                return self._operator is not None and self._signs("apply") >= self.draw.at
            case "worker":
                return self._signs("apply") >= self.draw.at
            case "recovery":
                return self._signs("incident") >= self.draw.at
            case _:
                if self.draw.status is not None:
                    return any(each.status == self.draw.status for each in self.runs)
                return self._signs("incident") >= self.draw.at

    def _strike(self) -> None:
        """Send SIGKILL or SIGSTOP to the victim."""
        number = signal.SIGKILL if self.draw.fault == "kill" else signal.SIGSTOP
        holder = next((each.holding for each in reversed(self.events) if each.holding), None)
        if isinstance(self._victim, Daemon):
            self._pids = (self._victim.pid,)
            if self.draw.whole and self.draw.fault == "kill":
                self.killed |= {each.run for each in self.runs}
            self._victim.signal(number, whole=self.draw.whole)
        else:
            pid = self._pid()
            if pid is None:
                return  # the victim has no process yet; try again at the next look
            self._pids = (pid,)
            if self.draw.victim in ("operator", "recovery") and self.draw.fault == "kill" and holder is not None:
                self.killed.add(holder)
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if self.draw.victim == "operator" and self.draw.fault == "freeze":
            self._frozen = self._operator
        self.struck_at, self._struck_seq = self.here.history.now_s(), self._seq
        last = self.events[-1] if self.events else None
        done = [each.word for each in self.events if each.kind == "stage"]
        self.said.append(f"{self.draw.fault} {self.draw.victim} {self._pids}; stages done {done}; last {last}")

    @property
    def _victim(self) -> Daemon | None:
        if self.draw.victim.startswith("daemon"):
            return self.here.daemons[int(self.draw.victim[-1]) - 1]
        return None

    def _pid(self) -> int | None:
        if self.draw.victim == "operator":
            return None if self._operator is None else self._operator.pid
        if self.draw.victim == "worker":
            return self.here.worker()
        run = next((each.holder for each in reversed(self.events) if each.kind == "incident" and each.holding), None)
        return None if run is None else self.here.process_of(run)

    def _may_go_on(self) -> bool:
        if self.draw.fault == "freeze" and not self._lapsed():
            return False
        if self.draw.thaw == "before":
            return True
        assert self.struck_at is not None
        lapse = SILENT_S if self.draw.fault == "freeze" else 0.0
        later = [e for e in self.events if e.seq > self._struck_seq and e.at > self.struck_at + lapse and e.holding]
        return self.draw.thaw == "during" and len(later) >= self.draw.again

    def _lapsed(self) -> bool:
        assert self.struck_at is not None
        return self.here.history.now_s() > self.struck_at + SILENT_S + 1.0

    def _go_on(self) -> None:
        """Continue a frozen victim, or restart a killed daemon."""
        self.thawed = True
        if self.draw.fault == "kill":
            if self._victim is not None:
                self._victim.end()
                self._victim.start()
                self.said.append(f"{self._victim.name} was started again")
            return
        if self._victim is not None:
            self._victim.signal(signal.SIGCONT, whole=True)
        else:
            for pid in self._pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self.said.append(f"{self.draw.victim} goes on; last {self.events[-1] if self.events else None}")
        if self._frozen is not None and self.draw.thaw == "before":
            self._hear_frozen()

    def _hear_frozen(self) -> None:
        """Wait until the operator's frozen process has continued and ended."""
        process = self._frozen
        assert process is not None
        assert process.stdout is not None
        self._until(lambda: process.poll() is not None, "the frozen command ends")
        output = process.stdout.read().decode(errors="replace").strip()
        self.said.append(f"the frozen command: exit {process.returncode}: {_end(output)}")

    def _kill_worker(self) -> None:
        pid = self.here.worker()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self._worker_killed = True
            self.said.append(f"killed worker {pid}")

    # --- steps at the end of the round ---------------------------------------------------------------------

    def _finish(self) -> None:
        if self.struck_at is not None and not self.thawed:
            if self.draw.fault == "freeze":
                self._until(self._lapsed, "its hold would have lapsed")
            if not self.thawed:
                self._go_on()
        if self._frozen is not None:
            self._hear_frozen()
        self._until(self._is_quiet, "nothing is open and the worker works")
        # A command may have begun and ended while a killed daemon was started again, so no look has seen its hold.
        self._read()

    def _is_quiet(self) -> bool:
        registry, instance = self.here.registry, self.here.instance
        if registry.journal.applies(1, open_only=True) or registry.open_incidents():
            return False
        if instance.get_runs(dg.RunsFilter(statuses=list(FINISHED), job_name="recover_processor")):
            return False
        desired = registry.deployment(self.here.operated.group)
        if desired is None or desired.desired != "deployed":
            return False
        status = self.here.operated.client.status()
        return status is not None and not status.paused and self._runs()

    def _until(self, condition: Callable[[], object], what: str) -> None:
        while not condition():
            try:
                self._look()
            except NotQuiet as late:
                raise NotQuiet(f"waited for: {what}\n{late}") from None

    def _story(self, why: str) -> str:
        failed = [each.run for each in self.runs if each.status == "FAILURE"]
        logs = (f"run {run}: {each.message}" for run in failed for each in self.here.instance.all_logs(run))
        seen = (*map(str, self.events[-12:]), *map(str, self.runs), *logs)
        return "\n  ".join((why, str(self.draw), *self.said, *seen))


def _starts(plan: str) -> bool:
    return any(isinstance(stage, RunProcessor | StopProcessor) for stage in plans.decode(plan).stages)


def _end(output: str) -> str:
    return " | ".join(output.splitlines()[-3:])[-400:]
