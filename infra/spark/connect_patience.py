"""The retry policy of clients whose Spark Connect server does not answer."""

# tidy: allow-crumb because this module adapts the retries of Spark Connect

from __future__ import annotations

import time

from pyspark.sql.connect.client.retries import DefaultPolicy

#: Maximum seconds for which calls to a server that does not answer are retried.
AWAY_S = 30.0
#: Maximum pause between two retries, milliseconds.
BACKOFF_MS = 5_000
#: If the last failure was at least this many seconds ago, a new failure starts a new period of retries.
FORGOTTEN_AFTER_S = 60.0


class PatientOnce(DefaultPolicy):
    """A policy that retries calls for ``AWAY_S`` after a session's first failure. After that, all calls fail at once.

    pyspark's own policy retries each call separately. A run that has lost its server makes several calls to clean up,
    so with pyspark's policy it would report the loss minutes later.
    """

    def __init__(self) -> None:
        super().__init__(max_retries=1_000, max_backoff=BACKOFF_MS)
        self._away_since = self._failed_at = float("-inf")

    def can_retry(self, e: BaseException) -> bool:
        """Whether to retry a call after this error; pyspark calls this method."""
        if not super().can_retry(e):
            return False
        now = time.monotonic()
        if now - self._failed_at > FORGOTTEN_AFTER_S:
            self._away_since = now
        self._failed_at = now
        return now - self._away_since < AWAY_S
