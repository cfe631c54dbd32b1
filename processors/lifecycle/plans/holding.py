"""The hold of one run on a processor: renewed while the run works, and verified before each change of the world.

Invariants:
    - A port behind ``fenced`` changes nothing once the hold is lost: the registry is asked right before each call.
    - A lost hold stays lost. A run that was frozen finds out before its next change, not at its next beat.

Between the answer of the registry and the change, a process may still be frozen, so each change must also be harmless
afterwards. The reasons, by port:
    deployer            It starts, stops and registers what the deployment says. The next holder compares programs and
                        workers with its own stage, and replaces a worker that does not fit.
    owners              A worker carries out one command at a time, and answers that it is done. A clear has the name of
                        its stage (``Hold.step``), which each task remembers in the transaction of the last deletes: a
                        second one deletes nothing. Adopt and positions need a paused worker, and compare offsets.
    topics              Create, configure and delete are repeated by the next holder without harm. Names of changelogs
                        carry no generation, so ``Topics.delete`` is asked for only by stages whose plan names the
                        present topic, and the workers' guard compares topic ids.
    dead letters        One transactional id for a processor; offsets of the letters are in the same transactions.
    table loaders       One transactional id for a processor: Kafka fences the former one at the next one's begin.
    state folders       The lock of each slot's folder.
    archive             The lock of the archive, and facts that are read again before a deletion.
    registry            The hold is compared in the same transaction (``Registry.fenced``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import structlog

from holdfast.infra.database import leases
from holdfast.infra.database.errors import HoldLost
from holdfast.infra.database.lease_times import BEAT_S
from holdfast.infra.database.leases import Fence
from holdfast.infra.errors import HoldfastError

log = structlog.get_logger(__name__)

Port = TypeVar("Port")

#: The methods that change something, by port.
DEPLOYER = frozenset({"start", "apply", "start_program", "stop_program", "kill_program", "remove", "remove_all"})
TOPICS = frozenset({"create", "alter", "delete", "delete_before", "delete_group"})
WORKER = frozenset({"pause", "resume", "stop", "compact", "export", "clear", "position", "until", "adopt"})
FOLDERS = frozenset({"set_aside", "delete_aside"})
TRANSACTIONS = frozenset({"abort_hanging"})


class Hold:
    """The hold of one run: first nothing, then one apply or incident."""

    def __init__(self) -> None:
        self._fence: Fence | None = None
        self._beat: Callable[[], bool] = lambda: False
        self._lost = threading.Event()
        #: The name of the present stage: equal for each run that holds the apply, and unique to the stage.
        self.step = ""

    def take(self, fence: Fence, beat: Callable[[], bool]) -> None:
        """Hold this from now on.

        ``beat`` records a sign of life, and returns False when another run has the hold.
        """
        self._fence, self._beat = fence, beat
        self._lost.clear()

    @property
    def fence(self) -> Fence:
        """The apply or incident, and the token of its holder.

        Raises:
            HoldLost: Nothing is held.
        """
        if self._fence is None:
            raise HoldLost("This run holds no apply and no incident.", action="Run the command again.")
        return self._fence

    @property
    def is_lost(self) -> bool:
        """Whether a sign of life was refused."""
        return self._lost.is_set()

    def check(self) -> None:
        """Record a sign of life.

        Raises:
            HoldLost: Another run took over, or the hold was ended.
            RegistryUnavailable: The registry does not answer, so the hold is unknown.
        """
        fence = self.fence
        if self.is_lost or not self._beat():
            self._lost.set()
            raise leases.lost(fence)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Record every ``BEAT_S``, from a thread, that this run is alive: a step may be long and silent.

        A refused beat is remembered: the next ``check`` raises.
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
    """A port whose ``changing`` methods call ``check`` first."""

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
    """The port; each of its ``changing`` methods raises HoldLost, without a change, once the hold is lost."""
    return cast("Port", _Fenced(port, changing, hold.check))
