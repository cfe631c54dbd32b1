"""Views of a task's committed state, which other threads read while the worker's loop writes.

    loop     write ──► (a commit) ──► write ──► (a commit) ──────► retire ──► close
                 └ version 7 ┘            └ version 8 ┘              │
    reader   open ─ snapshot of 7 ─ reads ─ release                  └ waits for the last reader

A view is a snapshot of the database. It is made when a reader asks for it, shared by readers that overlap, and released
by the last of them. A worker without readers therefore makes no snapshots, and keeps no old files of RocksDB.

Invariants:
    - A view contains whole commits only: the data and the offsets in ``meta`` belong together. While the database has
      data without its offsets (a replay, an emptied store), no view is made.
    - The database is closed only after all snapshots are released, because a snapshot keeps RocksDB open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.state.databases.database import Snapshot
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_meta import TaskMeta


class NoView(Exception):
    """No view of the state can be made now. The text is the reason."""


class View:
    """The committed state of one task at one commit. Several threads may read it at the same time.

    Attributes:
        meta: The offsets of the commit.
    """

    def __init__(self, snapshot: Snapshot, meta: TaskMeta) -> None:
        self.meta = meta
        self._snapshot = snapshot
        self._readers = 0
        self._ended = False

    def get(self, store: str, key: bytes) -> bytes | None:
        """Returns the stored value of a changelog key; None if the store does not have the key.

        Raises:
            NoView: The worker closes the task.
            DatabaseCorrupt: The data on disk is damaged.
        """
        self._check()
        return self._snapshot.get(store_prefix(store) + key)

    def items(self, store: str, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields changelog keys and values of one store, in key order, from the changelog key ``first`` upward.

        Raises the same errors as ``get``.
        """
        prefix = store_prefix(store)
        size = len(prefix)
        for key, value in self._snapshot.items(prefix + first):
            self._check()
            if not key.startswith(prefix):
                return
            yield key[size:], value

    def _check(self) -> None:
        if self._ended:
            raise NoView("the worker gives the task back")


class Views:
    """The views of one task's database. ``TaskStore`` tells it about writes, and readers open views.

    Args:
        snapshot: A function that makes a snapshot of the database.
    """

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._changed = Condition()
        self._current: View | None = None
        #: The views that readers use.
        self._open: set[View] = set()
        #: The offsets of the last commit, once a reader has asked for them.
        self._meta: TaskMeta | None = None
        self._why_not = ""
        self._retired = False
        #: The view of a standby that ``published`` returns.
        self._published: View | None = None

    @contextmanager
    def commit(self) -> Iterator[None]:
        """A context in which the database gets a batch of data with its offsets. Readers see all of it, or nothing."""
        with self._changed:
            self._current = self._meta = None
            self._why_not = "a write to the state failed"
            yield
            self._why_not = ""

    def tear(self) -> None:
        """Makes no views until the next ``commit``. Must be called before data is written without its offsets."""
        if not self._why_not:
            with self._changed:
                self._current = self._meta = None
                self._why_not = "the state is being replaced"

    @contextmanager
    def open(self) -> Iterator[View]:
        """A context with a view of the last commit. Any thread may call it.

        Raises:
            NoView: The task has no committed state now: nothing is committed yet, or a replay or a close is under way.
            DatabaseCorrupt: The data on disk is damaged.
        """
        view = self._taken()
        try:
            yield view
        finally:
            with self._changed:
                self._leave(view)

    def publish(self) -> None:
        """Keeps a view of the present content for ``published``, until the next call.

        A standby calls it when its content is that of a commit. While the standby replays, its content is not.
        """
        with self._changed:
            self._drop_published()
            if not self._retired:
                self._published = self._made(None)
                self._published._readers = 1
                self._open.add(self._published)

    @contextmanager
    def published(self) -> Iterator[View]:
        """A context with the view that was published last. Any thread may call it.

        Raises:
            NoView: No view was published yet, or the worker closes the standby.
        """
        with self._changed:
            view = self._published
            if view is None or self._retired:
                raise NoView("the standby has not reached the end of a commit yet")
            view._readers += 1
        try:
            yield view
        finally:
            with self._changed:
                self._leave(view)

    def unpublish(self) -> None:
        """Releases the view that ``publish`` keeps. Readers that use it now release it within a moment."""
        with self._changed:
            self._drop_published()

    def retire(self) -> None:
        """Makes no more views, and waits until readers have released theirs. Call it before the database closes.

        Readers notice it at their next read, so the wait is short.
        """
        with self._changed:
            self._retired = True
            for view in self._open:
                view._ended = True
            self._current = self._meta = None
            self._drop_published()
            self._changed.wait_for(lambda: not self._open)

    @contextmanager
    def reopened(self) -> Iterator[None]:
        """A context in which the database is closed and opened again, without readers."""
        self.retire()
        yield
        with self._changed:
            self._retired = False

    def _leave(self, view: View) -> None:
        view._readers -= 1
        if not view._readers:
            self._current = None if view is self._current else self._current
            self._open.discard(view)
            view._snapshot.close()
            self._changed.notify_all()

    def _drop_published(self) -> None:
        view, self._published = self._published, None
        if view is not None:
            self._leave(view)

    def _taken(self) -> View:
        with self._changed:
            if self._retired or self._why_not:
                raise NoView(self._why_not or "the worker gives the task back")
            if self._current is None:
                made = self._made(self._meta)
                self._meta = made.meta
                if made.meta.restoring:
                    made._snapshot.close()
                    raise NoView("the state is being restored")
                self._current = made
                self._open.add(made)
            self._current._readers += 1
            return self._current

    def _made(self, meta: TaskMeta | None) -> View:
        """Makes a view of the present content. Its offsets are read from it, unless the caller knows them."""
        snapshot = self._snapshot()
        try:
            if meta is None:
                raw = snapshot.get(META_KEY)
                if raw is None:
                    raise NoView("the task has committed nothing yet")
                meta = TaskMeta.decode(raw)
        except BaseException:
            snapshot.close()
            raise
        return View(snapshot, meta)
