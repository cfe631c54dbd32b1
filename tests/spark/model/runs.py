"""Runs of Holdfast that die between two commits, and concurrent runs that take turns at their commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from tests.spark.model import promised
from tests.spark.model.seams import Killed, Seams


@dataclass
class Run:
    """One run of Holdfast. If ``dies_at`` is set, the run dies before the commit with this number."""

    does: Callable[[], object]
    dies_at: int | None = None
    commits: int = 0
    #: The commit that the run was about to make when it died.
    died_before: str = ""
    failure: BaseException | None = None
    ended: bool = False

    def before_commit(self, words: str) -> None:
        """Die here if the run must not make this commit. A dead run can't commit later, whatever its handlers try."""
        self.commits += 1
        if self.dies_at is not None and self.commits >= self.dies_at:
            self.died_before = self.died_before or words[:60]
            raise Killed

    def whole(self) -> None:
        """Run to the end. An error is stored and not raised."""
        try:
            self.does()
        except Killed as death:
            self.failure = death
        except Exception as failure:
            self.failure = failure
        self.ended = True

    @property
    def died(self) -> bool:
        """Whether the run was killed. False if it was refused."""
        return isinstance(self.failure, Killed)


@contextmanager
def _hooked(seams: Seams, hook: Callable[[str], None]) -> Iterator[None]:
    before, seams.before_commit = seams.before_commit, hook
    try:
        yield
    finally:
        seams.before_commit = before


def alone(seams: Seams, run: Run) -> Run:
    """Run one run to its end or its death."""
    with _hooked(seams, run.before_commit):
        run.whole()
    return run


def together(seams: Seams, runs: Sequence[Run], turns: Sequence[int]) -> None:
    """Run several runs concurrently. Before each of its commits, a run waits for its turn.

    ``turns`` is the number of commits that each run makes before the next run's turn. The list is repeated.
    """
    hub = getcurrent()
    threads = {greenlet(run.whole, parent=hub): run for run in runs}

    def hook(words: str) -> None:
        mine = getcurrent()
        if mine is not hub:
            if promised.BRANCHES_BEGIN_WHERE_THE_RUN_LOOKED or "CREATE BRANCH" not in words:
                hub.switch()
            threads[mine].before_commit(words)

    turn, order = 0, list(threads)
    with _hooked(seams, hook):
        while any(not run.ended for run in runs):
            for thread in order:
                for _ in range(turns[turn % len(turns)]):
                    if not threads[thread].ended:
                        thread.switch()
                turn += 1
