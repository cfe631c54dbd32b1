"""Requests to the worker's main thread from other threads, for example from the HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A function that the worker's main thread must run.

    If ``only_reads`` is True, the function may also run while the worker waits for an answer of Kafka.
    """

    work: Callable[[], None]
    only_reads: bool
