"""Runs the sources of one task on threads, and passes their units (messages and state) into the task's transaction.

    look ──► thread: run() ──► units ──► take, before a commit ──► outputs, state and progress in one transaction
                                            └── aborted ──► restore: the units are taken again

A source's store contains its state and a progress record. The progress record has the number of sent messages, and
whether the source has ended. Like all state, both are in the changelog, checkpoints, standbys and snapshots, and are
restored with the store.

Invariants:
    - A unit is taken as a whole: its messages, its state and the progress record are in one commit.
    - A source's thread never uses a Kafka client or the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

import msgspec
import structlog

from holdfast.infra.clock import Clock
from holdfast.processors.engine.changelog.format import key_prefix, unknown_version
from holdfast.processors.engine.connectors import SourceFigures
from holdfast.processors.engine.sources.declaration import DeclaredSource
from holdfast.processors.engine.sources.handover import Handover, Limits
from holdfast.processors.engine.sources.source_state import SourceState
from holdfast.processors.engine.state.own_keys import SOURCES
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.window_keys import OWN_KEY
from holdfast.processors.engine.steps.outbox import Outboxes

_log = structlog.get_logger("sources")

FORMAT_VERSION = 1


class SourceProgress(msgspec.Struct, frozen=True):
    """The progress of a source, as of a transaction of the task.

    Attributes:
        sent: The number of messages that were sent.
        last: The time of the worker's clock when the last unit was taken, in milliseconds since 1970; None before the
            first unit.
        ended: Whether ``run`` has returned since the last start.
        format: The format version of this record.
    """

    sent: int = 0
    last: int | None = None
    ended: bool = False
    format: int = FORMAT_VERSION


_NOTHING = SourceProgress()


@dataclass(slots=True)
class _Running:
    """A source in its task: its progress with uncommitted units, its committed progress, and the running ``run``."""

    declared: DeclaredSource
    store: DeclaredState
    limits: Limits
    progress: SourceProgress = _NOTHING
    committed: SourceProgress = _NOTHING
    handover: Handover | None = None
    #: The copy of the source object on which ``run`` is called.
    copy: Any = None

    @property
    def name(self) -> str:
        return self.declared.name


class TaskSources:
    """Runs the sources of one task.

    Args:
        sources: For each source, its declaration, its store and the limits for its messages.
        outboxes: The outputs of the task that are not sent yet.
        clock: The worker's clock.
    """

    def __init__(
        self, sources: Sequence[tuple[DeclaredSource, DeclaredState, Limits]], outboxes: Outboxes, clock: Clock
    ) -> None:
        self._all = [_Running(*each) for each in sources]
        self._outboxes, self._clock = outboxes, clock
        self._ending = self._closed = False

    def load(self) -> None:
        """Reads the progress of the sources from their stores.

        Must be called at the start and after a command has changed a store. Stops the running sources. The next
        ``look`` starts them from the changed state.

        Raises:
            FormatUnknown: A stored progress record has another format version.
        """
        for each in self._all:
            self._stop(each)
            held = each.store.read_own(OWN_KEY, SOURCES + each.name)
            if held is not None and held.get("format", FORMAT_VERSION) != FORMAT_VERSION:
                raise unknown_version(f"The record of source {each.name}", held.get("format"), FORMAT_VERSION)
            each.committed = SourceProgress() if held is None else msgspec.convert(held, SourceProgress)
            each.progress = each.committed

    def look(self) -> bool:
        """Starts the sources that do not run. Returns True if one of the sources waits for a commit.

        Call it only while the task may send messages.

        Raises:
            SourceHangs: In a test with virtual time, a source neither ends nor waits for the worker.
        """
        for each in self._all:
            if each.handover is None and not (self._ending or self._closed):
                self._start(each)
            if each.handover is not None:
                each.handover.settle()
        return any(each.handover.urgent or self._has_ended(each) for each in self._all if each.handover is not None)

    def take(self) -> None:
        """Moves complete units into the task's outputs and the sources' stores. The next commit contains them."""
        for each in self._all:
            if each.handover is None:
                continue
            ended = each.handover.ended and each.handover.error is None
            units, now_ms = each.handover.take(), int(self._clock.time() * 1000)
            for unit in units:
                each.store.point_at(OWN_KEY, now_ms)
                for output in unit.outputs:
                    self._outboxes.add(output)
                for key, raw in unit.writes.items():
                    each.store.write_value(each.name.encode(), key, raw)
            sent = each.progress.sent + sum(len(unit.outputs) for unit in units)
            last = now_ms if units else each.progress.last
            progress = SourceProgress(sent, last, ended and not each.handover.pending)
            if progress != each.progress:
                each.progress = progress
                each.store.point_at(OWN_KEY, now_ms)
                each.store.write_own(OWN_KEY, SOURCES + each.name, msgspec.to_builtins(progress))
                each.store.keep_message()

    @property
    def dirty(self) -> bool:
        """Whether a commit is needed, because units were taken or a source has ended since the last commit."""
        return any(each.progress != each.committed for each in self._all)

    @property
    def pending(self) -> bool:
        """Whether there are complete units that ``take`` has not taken yet."""
        return any(each.handover is not None and each.handover.pending for each in self._all)

    @property
    def hurries(self) -> bool:
        """Whether a running source may produce at any time. The worker's loop then must not wait long for records."""
        running = [each.handover for each in self._all if each.handover is not None]
        return any(not (each.ended or each.in_step) for each in running)

    @property
    def failure(self) -> tuple[str, str, BaseException] | None:
        """The name of a source that raised an error, the method that raised it, and the error; None if none raised."""
        for each in self._all:
            if each.handover is not None and each.handover.error is not None and not each.handover.pending:
                return each.name, each.copy.called_by_worker, each.handover.error
        return None

    def figures(self, task: str) -> dict[str, SourceFigures]:
        """Maps each source to its figures, as of the last commit. ``task`` is the name of this task."""
        found = {}
        for each in self._all:
            told = SourceFigures(task) if each.handover is None else each.handover.figures
            kept = each.committed
            at = None if kept.last is None else kept.last / 1000
            ended = kept.ended and each.handover is not None and not told.runs
            found[each.name] = replace(told, task=task, produced=kept.sent, last_at=at, ended=ended)
        return found

    def committed(self) -> None:
        """Must be called after each successful commit. Marks the taken units as committed."""
        for each in self._all:
            each.committed = each.progress
            if each.handover is not None:
                each.handover.committed()

    def restore(self) -> None:
        """Must be called after an aborted transaction. The next ``take`` takes the same units again."""
        for each in self._all:
            each.progress = each.committed
            if each.handover is not None:
                each.handover.restore()

    def end(self) -> None:
        """Asks the sources to end. ``take`` can still take complete units."""
        self._ending = True
        for each in self._all:
            if each.handover is not None and each.handover.running:
                each.handover.end()
                self._tell(each)

    def have_ended(self, seconds: float) -> bool:
        """Waits until each source has ended or has a unit for the next commit.

        Returns whether all sources have ended and all their units are taken.
        """
        running = [each.handover for each in self._all if each.handover is not None]
        ended = [each.wait_for_more(seconds) for each in running]
        return all(ended) and not any(each.pending for each in running)

    @property
    def patience_s(self) -> float:
        """The longest ``shutdown_timeout`` of the sources, in seconds."""
        return max(each.declared.source.shutdown_timeout for each in self._all)

    def close(self) -> None:
        """Ends the sources and discards uncommitted units. Waits for each thread for ``shutdown_timeout`` seconds."""
        self._closed = True
        for each in self._all:
            self._stop(each)

    @staticmethod
    def _has_ended(each: _Running) -> bool:
        """Whether ``run`` has ended, and either has raised an error or its end is not in the source's progress yet."""
        handover = each.handover
        assert handover is not None
        return handover.ended and (handover.error is not None or not each.progress.ended)

    def _start(self, each: _Running) -> None:
        declared, store = each.declared, each.store
        held: Mapping[str, bytes] = {}
        if declared.keeps_state:
            held = {key.decode(): raw for key, raw in store.stored(each.name.encode(), b"")}
        room = len(key_prefix(each.name.encode()))
        state = SourceState(store.name, held, lambda key, size: store.check_room(key, size + room))
        topic, whole = declared.topic, declared.keeps_state
        each.handover = handover = Handover(each.name, topic.name, state, each.limits, self._clock, whole=whole)
        each.copy = declared.source.started_with(topic, handover)
        thread = Thread(target=handover.run, args=(each.copy.start,), name=f"source-{each.name}", daemon=True)
        thread.start()
        _log.info("source started", source=each.name, topic=topic.name)

    def _stop(self, each: _Running) -> None:
        if each.handover is None:
            return
        handover, each.handover = each.handover, None
        asked = handover.running
        handover.close()
        if asked:
            self._tell(each)
        if not handover.wait_ended(each.declared.source.shutdown_timeout):
            _log.warning(
                "a source has not ended: its `run` is in a call that does not return. Nothing that it still "
                "produces is sent. Let it return when `self.running` is False, or end the call in its `stop()`",
                source=each.name,
                shutdown_timeout=each.declared.source.shutdown_timeout,
            )

    @staticmethod
    def _tell(each: _Running) -> None:
        """Calls the source's ``stop``. An error of ``stop`` is only logged."""
        try:
            each.copy.stop()
        except Exception as failure:
            _log.warning("`stop` of a source raised", source=each.name, error=f"{type(failure).__name__}: {failure}")
