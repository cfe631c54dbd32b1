"""Requests to the worker's thread, from the threads that serve HTTP and the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """Work for the worker's thread; ``only_reads`` lets it run also while a request to Kafka waits."""

    work: Callable[[], None]
    only_reads: bool
