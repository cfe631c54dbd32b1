"""One search for a checkpoint that is under way: it is given up when a replay of the changelog would be quicker."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from holdfast.processors.engine.checkpoints.decision import Patience, Refusal
from holdfast.processors.engine.checkpoints.fetch import Fetched
from holdfast.processors.engine.checkpoints.ports import Job

_log = structlog.get_logger("checkpoints.fetching")


@dataclass(frozen=True, slots=True)
class Fetching:
    """The search for one task, and how long it may take."""

    task: str
    job: Job
    patience: Patience

    def ended(self, now: float) -> Fetched | None:
        """What was found, with a line in the log for each checkpoint that is not used; None while the search continues.

        A search that failed, or that is given up now, found nothing. ``now`` is monotonic seconds.
        """
        too_slow = None if self.job.done else self.patience.spent(now, self.job.progress.get("bytes", 0))
        if not self.job.done and too_slow is None:
            return None
        if too_slow is not None:
            self.job.cancel()
        found = self._found
        if found is None:
            found = Fetched(None, None, (Refusal("all", too_slow or f"the fetch failed: {self.job.failure!r}"),))
        for refused in found.refused:
            _log.warning("a checkpoint is not used", task=self.task, checkpoint=refused.checkpoint_id, why=refused.why)
        return found

    def give_up(self) -> Fetched | None:
        """Ends the search; what it had found, if it had ended."""
        self.job.cancel()
        return self._found

    @property
    def _found(self) -> Fetched | None:
        return self.job.result if isinstance(self.job.result, Fetched) else None
