"""The interface between the bench and the processes that it measures.

A process gets ``name=value`` arguments, and prints one line of JSON at its end.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one measured process, which ends after ``count`` messages are processed and committed."""

    bootstrap: str
    #: The name that serves as consumer group, application id and transactional id.
    group: str
    source: str
    output: str
    count: int
    guarantee: Literal["exactly-once", "at-least-once"]
    commit_s: float
    state_dir: str
    #: How long producers wait to fill a batch (`linger.ms`), in milliseconds.
    linger_ms: int = 50
    #: The number of changelog records that are restored first.
    restore: int = 0
    #: The topic with the changelog records, for the contender that only reads them.
    changelog: str = ""
    #: The size of RocksDB's block cache in MiB; 0 keeps the contender's default.
    block_cache_mb: int = 0
    #: Windows instead of running totals, as text that ``kafka_streams/Windows.java`` parses.
    windows: str = ""
    #: Joins instead of running totals, as text that ``kafka_streams/Joins.java`` parses.
    joins: str = ""
    #: The session timeout in milliseconds, after which a killed process leaves its group; 0 keeps the default.
    session_ms: int = 0

    def arguments(self) -> list[str]:
        return [f"{name}={value}" for name, value in asdict(self).items()]

    @staticmethod
    def parse(arguments: list[str]) -> Work:
        given: dict[str, Any] = dict(argument.split("=", 1) for argument in arguments)
        kinds: dict[str, type] = dict.fromkeys(("count", "linger_ms", "restore", "block_cache_mb", "session_ms"), int)
        kinds["commit_s"] = float
        return Work(**{name: kinds.get(name, str)(given[name]) for name in (field.name for field in fields(Work))})


def tell(**facts: Any) -> None:
    """Print the result line of a measured process."""
    print(json.dumps(facts), flush=True)


def parse_last(said: str) -> dict[str, Any]:
    """Return the JSON object in the last line of JSON that a process printed."""
    lines = [line for line in said.splitlines() if line.startswith("{")]
    told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return told
