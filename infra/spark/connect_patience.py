"""How long a Spark Connect server that is away is asked again."""

from __future__ import annotations

import time

from pyspark.sql.connect.client.retries import DefaultPolicy

#: A server that is away is asked again for so long, seconds, with at most so many milliseconds between.
AWAY_S, BACKOFF_MS = 30.0, 5_000
#: A failure so long after the one before, seconds, is another absence.
FORGOTTEN_AFTER_S = 60.0


class PatientOnce(DefaultPolicy):
    """One absence of the server is waited for once: when it was given up, later calls of the session fail at once.

    The policy that pyspark comes with gives each call its own patience; a run that has lost its server makes several
    more, to clean up behind it, and would be minutes in saying so.
    """

    def __init__(self) -> None:
        super().__init__(max_retries=1_000, max_backoff=BACKOFF_MS)
        self._away_since = self._failed_at = float("-inf")

    def can_retry(self, e: BaseException) -> bool:
        """Whether a call that failed so is made again."""
        if not super().can_retry(e):
            return False
        now = time.monotonic()
        if now - self._failed_at > FORGOTTEN_AFTER_S:
            self._away_since = now
        self._failed_at = now
        return now - self._away_since < AWAY_S
