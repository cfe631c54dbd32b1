"""The hold (lease) of one run (process) on an apply or incident: renewed by heartbeats, verified before each change.

An apply is the execution of a plan for a processor. At most one run at a time may carry out an apply.

Invariants:
    - A port that ``fenced`` wraps changes nothing after the hold is lost, because the lease is verified in the registry
      before each call.
    - A lost hold stays lost. A run that was frozen notices the loss before its next change, not only at a heartbeat.

A process can freeze between the registry's answer and the change. So a change must also be harmless after the hold is
lost. The reasons why it is harmless, by port:
    deployer            It starts, stops and registers only workers of the deployment. The next holder compares programs
                        and workers with its own stage, and replaces a worker that does not match.
    owners              A worker carries out one command at a time. A clear carries the name of its stage
                        (``Hold.step``). Each task remembers this name in the transaction of the last deletes, so a
                        second clear deletes nothing. The commands ``adopt`` and ``position`` are refused unless the
                        worker is paused and their offsets exist.
    topics              The next holder can repeat create, configure and delete without harm. A changelog that is
                        deleted and created again has the same name. So a delete that comes late could delete the new
                        topic. For this reason, ``Topics.delete`` is called only for a topic that the plan names, and
                        workers compare topic ids before they use their state.
    dead letters        Each processor has one transactional id for them. The letters' offsets are committed in the
                        same transactions as the messages.
    table loaders       Each processor has one transactional id for them, so a new loader fences the former loader.
    state folders       The folder of each slot (place of one worker) has a lock.
    archive             The archive has a lock, and facts are read again before a deletion.
    registry            The lease is verified in the same database transaction (``Registry.fenced``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from holdfast.infra.database import leases
from holdfast.infra.database.errors import HoldLost
from holdfast.infra.database.lease_times import BEAT_S
from holdfast.infra.database.leases import Fence
from holdfast.infra.errors import HoldfastError
from holdfast.infra.log import get_logger

log = get_logger(__name__)

Port = TypeVar("Port")

#: The names of methods that change something, by kind of port. A port is an object through which an apply (execution of
#: a plan) acts on other systems.
DEPLOYER = frozenset({"start", "apply", "start_program", "stop_program", "kill_program", "remove", "remove_all"})
TOPICS = frozenset({"create", "alter", "delete", "delete_before", "delete_group"})
WORKER = frozenset({"pause", "resume", "stop", "compact", "export", "clear", "position", "until", "adopt"})
FOLDERS = frozenset({"set_aside", "delete_aside"})
TRANSACTIONS = frozenset({"abort_hanging"})


class Hold:
    """The lease of one run (process) on one apply (execution of a plan) or incident.

    There is no lease until ``take`` is called.
    """

    def __init__(self) -> None:
        self._fence: Fence | None = None
        self._beat: Callable[[], bool] = lambda: False
        self._lost = threading.Event()
        #: The name of the stage (step of the plan) that is executed now. Each stage has its own name; a run that
        #: repeats the stage uses the same name.
        self.step = ""

    def take(self, fence: Fence, beat: Callable[[], bool]) -> None:
        """Start the lease on an apply (execution of a plan) or incident, given by ``fence``.

        ``beat`` records a heartbeat, and returns False if another run has the lease.
        """
        self._fence, self._beat = fence, beat
        self._lost.clear()

    @property
    def fence(self) -> Fence:
        """Identifies this run's apply (execution of a plan) or incident, and has the token of its lease.

        Raises:
            HoldLost: This run holds neither an apply nor an incident.
        """
        if self._fence is None:
            raise HoldLost("This run holds no apply and no incident.", action="Run the command again.")
        return self._fence

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost, because Holdfast's registry refused a heartbeat."""
        return self._lost.is_set()

    def check(self) -> None:
        """Verify the lease by recording a heartbeat.

        Raises:
            HoldLost: Another run took over the apply (execution of a plan) or incident, or the lease was ended.
            RegistryUnavailable: Holdfast's registry does not answer, so the state of the lease is unknown.
        """
        fence = self.fence
        if self.is_lost or not self._beat():
            self._lost.set()
            raise leases.lost(fence)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Records a heartbeat every ``BEAT_S`` seconds from a thread during the block, because one step may take long.

        A refused heartbeat is remembered, so that the next ``check`` raises HoldLost.
        """
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT_S):
                try:
                    self.check()
                except HoldLost as lost:
                    log.error("hold.lost", error=lost.message)
                    return
                except HoldfastError as failed:
                    log.warning("hold.beat_failed", error=failed.message)

        thread = threading.Thread(target=beat, name="hold-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


class _Fenced:
    """Wraps an object: before each call of a method in ``changing``, the wrapper verifies the lease with ``check``."""

    def __init__(self, port: object, changing: frozenset[str], check: Callable[[], None]) -> None:
        self._port, self._changing, self._check = port, changing, check

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in self._changing:
            return found

        @wraps(found)
        def checked(*arguments: Any, **named: Any) -> Any:
            self._check()
            return found(*arguments, **named)

        return checked


def fenced(port: Port, changing: frozenset[str], hold: Hold) -> Port:
    """Wraps an object: after the lease is lost, its methods in ``changing`` raise HoldLost and change nothing."""
    return cast("Port", _Fenced(port, changing, hold.check))
