"""Requests that other threads, for HTTP or for the terminal, send to the worker's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A function to run on the worker's thread.

    If ``only_reads`` is True, it may also run while the worker waits for an answer of Kafka.
    """

    work: Callable[[], None]
    only_reads: bool
