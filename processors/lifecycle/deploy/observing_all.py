"""Reads the status of all instances (workers) of many processors in parallel, with one request for each instance.

Invariants:
    - The total time is about that of the slowest instance, even if many instances do not answer.
    - The supervisor lists its programs once, before the requests to the instances. So every status belongs to a listed
      program.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

from holdfast.infra.database.records import Deployment
from holdfast.infra.deploy.deployer import Deployer
from holdfast.infra.deploy.program_files import ProgramStatus, SupervisorSilent
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.present import beyond_in
from holdfast.processors.lifecycle.ports import ProcessorStatusSource, World

#: Maximum number of instances whose status is requested in parallel.
SIDE_BY_SIDE = 32


class _Answered:
    """Wraps the client of one worker: returns a cached status, and sends all other requests to the worker."""

    def __init__(self, source: ProcessorStatusSource, answer: ProcessorStatus | None) -> None:
        self._source = source
        self._answer = answer

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        """The cached status; None if the instance did not answer."""
        return self._answer

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        """The time of the last heartbeat, read from the instance."""
        return self._source.last_heartbeat(pid)

    def last_failure(self) -> ProcessorStatus | None:
        """The status of the last failed process, read from the instance."""
        return self._source.last_failure()


class _Listed:
    """A deployer (access to the supervisor) with a cached list of programs, or with a cached error that it raises.

    Requests that change something are sent to the real deployer.
    """

    def __init__(
        self, deployer: Deployer, programs: dict[str, ProgramStatus] | None, silent: SupervisorSilent | None
    ) -> None:
        self._programs, self._silent = programs, silent
        self.start = deployer.start
        self.apply = deployer.apply
        self.differs = deployer.differs
        self.start_program = deployer.start_program
        self.stop_program = deployer.stop_program
        self.kill_program = deployer.kill_program
        self.remove = deployer.remove
        self.remove_all = deployer.remove_all
        self.log_tail = deployer.log_tail

    def running(self) -> bool:
        """Whether the supervisor was running at the time when its programs were listed.

        Raises:
            SupervisorSilent: The supervisor did not answer at that time. The request is not repeated, because every
                request to a silent supervisor waits for its full timeout.
        """
        if self._silent is not None:
            raise self._silent
        return self._programs is not None

    def programs(self) -> dict[str, ProgramStatus]:
        """Every program in the cached list, by name."""
        return dict(self._programs or {})


def look_at_all(world: World, deployments: Iterable[Deployment]) -> World:
    """Returns a copy of ``world`` (access to supervisor, workers and registry) with cached statuses of these instances.

    If the supervisor cannot list its programs, ``world`` is returned unchanged. The caller's next request to the
    supervisor then raises the error.
    """
    deployer, silent = world.deployer, None
    try:
        programs = deployer.programs() if deployer.running() else None
    except SupervisorSilent as hangs:
        programs, silent = None, hangs
    except HoldfastError:
        return world
    wanted = [
        (each.processor, slot)
        for each in deployments
        for slot in (*each.slots, *beyond_in(programs or {}, each.processor, each.slots, world))
        if silent is not None
        or (programs and (known := programs.get(world.paths.program(each.processor, slot))) and known.alive)
    ]
    with ThreadPoolExecutor(min(SIDE_BY_SIDE, len(wanted)) or 1, thread_name_prefix="look") as pool:
        answers = dict(zip(wanted, pool.map(lambda one: world.statuses(*one).status(), wanted), strict=True))

    def source(processor: str, slot: str) -> ProcessorStatusSource:
        own = world.statuses(processor, slot)
        return _Answered(own, answers[processor, slot]) if (processor, slot) in answers else own

    return replace(world, deployer=_Listed(deployer, programs, silent), statuses=source)
