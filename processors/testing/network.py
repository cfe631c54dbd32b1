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
        outages: How often the brokers went down.
    """

    def __init__(self) -> None:
        self.delay_s = 31.0
        self.marker_delay_s = 0.002
        self.outages = 0
        self._brokers_up = True

    @property
    def brokers_up(self) -> bool:
        """Whether the brokers answer."""
        return self._brokers_up

    @brokers_up.setter
    def brokers_up(self, up: bool) -> None:
        self.outages += self._brokers_up and not up
        self._brokers_up = up

    def leaves_out(self, place: str) -> bool:
        """Whether the coordinator omits the marker of a topic or group, as in KAFKA-20734."""
        return False

    def fate(self, process: str, request: str) -> Fate:
        """The fate of one ``request``: ``produce``, ``send_offsets``, ``commit``, ``abort`` or ``commit_offsets``.

        For ``queue``, which passes many records to the client at once, only ``RAISES`` has a meaning.
        """
        return Fate.OK
