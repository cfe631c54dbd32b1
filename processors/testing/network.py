"""What becomes of requests on their way to the in-memory cluster and back."""

from __future__ import annotations

from enum import Enum


class Fate(Enum):
    """What becomes of one request."""

    OK = "answered"
    LOST = "never arrives"
    REPLY_LOST = "is done, but its answer is lost"
    DELAYED = "arrives when nobody waits for the answer any more"


class Network:
    """A network on which all goes well; subclasses decide otherwise.

    Attributes:
        delay_s: How much later DELAYED requests arrive, in virtual seconds.
        marker_delay_s: How long after the answer to a commit its markers are written, in virtual seconds.
        brokers_up: Whether anybody answers.
    """

    def __init__(self) -> None:
        self.delay_s = 31.0
        self.marker_delay_s = 0.002
        self.brokers_up = True

    def fate(self, process: str, request: str) -> Fate:
        """What becomes of one request: ``produce``, ``send_offsets``, ``commit``, ``abort``, ``init``."""
        return Fate.OK
