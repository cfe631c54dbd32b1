"""The sources of one task: their threads, and their units on the way into the task's transaction.

    look ──► thread: run() ──► units ──► take, before a commit ──► outputs, state and record in one transaction
                                            └── aborted ──► restore: the units are taken again

A record for each source stands in its store, beside the state: how much it has sent, and whether it has ended.
Changelog, checkpoint, restore, standby and snapshot have both as they have all state.

Invariants:
    - A unit is taken as a whole, and its messages, state and record are in one commit.
    - The thread of a source never touches Kafka or the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import msgspec
import structlog

from holdfast.infra.clock import Clock
from holdfast.processors.engine.changelog.format import key_prefix, unknown_version
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
    """What a source has done in committed transactions.

    Attributes:
        sent: The number of messages.
        last: The worker's time of the last unit, in milliseconds since 1970; None before the first one.
        ended: Whether ``run`` has returned since the last start.
        format: The version of this record.
    """

    sent: int = 0
    last: int | None = None
    ended: bool = False
    format: int = FORMAT_VERSION


_NOTHING = SourceProgress()


@dataclass(slots=True)
class _Running:
    """A source in its task: its record with uncommitted units, the committed record, and the present run."""

    declared: DeclaredSource
    store: DeclaredState
    limits: Limits
    progress: SourceProgress = _NOTHING
    committed: SourceProgress = _NOTHING
    handover: Handover | None = None
    #: The copy of the source that runs.
    copy: Any = None

    @property
    def name(self) -> str:
        return self.declared.name


class TaskSources:
    """Runs the sources of one task.

    Args:
        sources: For each source, its store and the limits of its messages.
        outboxes: The waiting outputs of the task.
        clock: The worker's clock.
    """

    def __init__(
        self, sources: Sequence[tuple[DeclaredSource, DeclaredState, Limits]], outboxes: Outboxes, clock: Clock
    ) -> None:
        self._all = [_Running(*each) for each in sources]
        self._outboxes, self._clock = outboxes, clock
        self._ending = self._closed = False

    def load(self) -> None:
        """Reads the records from the stores; called at the start, and after a command has changed a store.

        A source that runs is ended, and starts again from the changed state at the next ``look``.

        Raises:
            FormatUnknown: A record has another format version.
        """
        for each in self._all:
            self._stop(each)
            held = each.store.read_own(OWN_KEY, SOURCES + each.name)
            if held is not None and held.get("format", FORMAT_VERSION) != FORMAT_VERSION:
                raise unknown_version(f"The record of source {each.name}", held.get("format"), FORMAT_VERSION)
            each.committed = SourceProgress() if held is None else msgspec.convert(held, SourceProgress)
            each.progress = each.committed

    def look(self) -> bool:
        """Starts the sources that do not run; True if one of them waits for a commit. Call it while the task may send.

        Raises:
            SourceHangs: In a test with virtual time, a source does nothing.
        """
        for each in self._all:
            if each.handover is None and not (self._ending or self._closed):
                self._start(each)
            if each.handover is not None:
                each.handover.settle()
        return any(each.handover.urgent or self._has_ended(each) for each in self._all if each.handover is not None)

    def take(self) -> None:
        """Moves complete units into the outputs and the store of the task, as a part of the next commit."""
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
        """Whether a commit is needed, because units were taken, or a source has ended."""
        return any(each.progress != each.committed for each in self._all)

    @property
    def pending(self) -> bool:
        """Whether there are complete units that were not taken."""
        return any(each.handover is not None and each.handover.pending for each in self._all)

    @property
    def hurries(self) -> bool:
        """Whether a source runs that may produce at any time, so that the loop must not wait long for records."""
        running = [each.handover for each in self._all if each.handover is not None]
        return any(not (each.ended or each.in_step) for each in running)

    @property
    def failure(self) -> tuple[str, str, BaseException] | None:
        """The source that raised, the method of it, and its error; None without an error."""
        for each in self._all:
            if each.handover is not None and each.handover.error is not None and not each.handover.pending:
                return each.name, each.copy.called_by_worker, each.handover.error
        return None

    def committed(self) -> None:
        """Must be called after each successful commit."""
        for each in self._all:
            each.committed = each.progress
            if each.handover is not None:
                each.handover.committed()

    def restore(self) -> None:
        """Gives back the units of an aborted transaction."""
        for each in self._all:
            each.progress = each.committed
            if each.handover is not None:
                each.handover.restore()

    def end(self) -> None:
        """Asks the sources to end. Complete units are still taken."""
        self._ending = True
        for each in self._all:
            if each.handover is not None and each.handover.running:
                each.handover.end()
                self._tell(each)

    def have_ended(self, seconds: float) -> bool:
        """Waits until the sources have ended, or one waits for a commit; returns whether all have ended."""
        running = [each.handover for each in self._all if each.handover is not None]
        ended = [each.wait_for_more(seconds) for each in running]
        return all(ended) and not any(each.pending for each in running)

    @property
    def patience_s(self) -> float:
        """The longest ``shutdown_timeout``, in seconds."""
        return max(each.declared.source.shutdown_timeout for each in self._all)

    def close(self) -> None:
        """Ends the sources and discards what is not committed. Waits for their threads, up to ``shutdown_timeout``."""
        self._closed = True
        for each in self._all:
            self._stop(each)

    @staticmethod
    def _has_ended(each: _Running) -> bool:
        """Whether ``run`` has ended, and the record does not say so; or it has raised."""
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
        """Calls ``stop`` of the source; an error there changes nothing."""
        try:
            each.copy.stop()
        except Exception as failure:
            _log.warning("`stop` of a source raised", source=each.name, error=f"{type(failure).__name__}: {failure}")
