"""The retry policy for a Spark Connect server that does not answer."""

from __future__ import annotations

import time

from pyspark.sql.connect.client.retries import DefaultPolicy

#: How long calls to a server that does not answer are retried, seconds.
AWAY_S = 30.0
#: Longest pause between two retries, milliseconds.
BACKOFF_MS = 5_000
#: A failure this long after the last one starts a new absence, seconds.
FORGOTTEN_AFTER_S = 60.0


class PatientOnce(DefaultPolicy):
    """Waits once for an absence of the server; after ``AWAY_S``, further calls of the session fail at once.

    pyspark's own policy retries each call separately. A run that has lost its server makes several more calls to clean
    up, and would report the loss minutes later.
    """

    def __init__(self) -> None:
        super().__init__(max_retries=1_000, max_backoff=BACKOFF_MS)
        self._away_since = self._failed_at = float("-inf")

    def can_retry(self, e: BaseException) -> bool:
        """Whether to retry a call after this error."""
        if not super().can_retry(e):
            return False
        now = time.monotonic()
        if now - self._failed_at > FORGOTTEN_AFTER_S:
            self._away_since = now
        self._failed_at = now
        return now - self._away_since < AWAY_S
