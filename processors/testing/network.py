"""The fate of requests between a process and the in-memory cluster."""

from __future__ import annotations

from enum import Enum


class Fate(Enum):
    """The fate of one request."""

    OK = "answered"
    LOST = "never arrives"
    REPLY_LOST = "is done, but its answer is lost"
    DELAYED = "arrives after the sender has stopped waiting"
    RAISES = "the client library raises an error that it does not document"


class Network:
    """A network without faults; subclasses override ``fate``.

    Attributes:
        delay_s: The delay of DELAYED requests, in virtual seconds.
        marker_delay_s: The time from the answer to a commit to its last marker, in virtual seconds.
        brokers_up: Whether the brokers answer.
    """

    def __init__(self) -> None:
        self.delay_s = 31.0
        self.marker_delay_s = 0.002
        self.brokers_up = True

    def fate(self, process: str, request: str) -> Fate:
        """The fate of one ``request``: ``produce``, ``send_offsets``, ``commit``, ``abort`` or ``commit_offsets``.

        For ``queue``, many records that the client takes at once, only ``RAISES`` has a meaning.
        """
        return Fate.OK
