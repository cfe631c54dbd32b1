"""Decides what happens to requests between a process and the in-memory cluster."""

from __future__ import annotations

from enum import Enum


class Fate(Enum):
    """The outcome of one request to the in-memory cluster."""

    OK = "answered"
    LOST = "never arrives"
    REPLY_LOST = "is done, but its answer is lost"
    DELAYED = "arrives after the sender has stopped waiting"
    RAISES = "the client library raises an error that it does not document"


class Network:
    """A network without faults. For faults, override ``fate`` in a subclass.

    Attributes:
        delay_s: The delay of requests with the fate DELAYED, in virtual seconds.
        marker_delay_s: The time between the answer to a commit and its last marker, in virtual seconds.
        outages: The number of times that the brokers went down.
    """

    def __init__(self) -> None:
        self.delay_s = 31.0
        self.marker_delay_s = 0.002
        self.outages = 0
        self._brokers_up = True

    @property
    def brokers_up(self) -> bool:
        """Whether the brokers answer requests."""
        return self._brokers_up

    @brokers_up.setter
    def brokers_up(self, up: bool) -> None:
        self.outages += self._brokers_up and not up
        self._brokers_up = up

    def leaves_out(self, place: str) -> bool:
        """Whether the coordinator omits the transaction marker of a topic or group, as in the bug KAFKA-20734."""
        return False

    def fate(self, process: str, request: str) -> Fate:
        """Returns the outcome of one request of a process.

        ``request`` is ``produce``, ``send_offsets``, ``commit``, ``abort``, ``commit_offsets`` or ``queue``.

        The request ``queue`` passes many records to the client library at once. For ``queue``, every outcome but
        ``RAISES`` counts as answered.
        """
        return Fate.OK
