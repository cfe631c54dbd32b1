"""How the bench and the processes that it measures talk: ``name=value`` arguments in, one line of JSON out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Work:
    """What one measured process has to do; it ends by itself after ``count`` messages, all committed."""

    bootstrap: str
    #: Consumer group, application id and transactional id.
    group: str
    source: str
    output: str
    count: int
    guarantee: Literal["exactly-once", "at-least-once"]
    commit_s: float
    state_dir: str
    #: How long producers gather records that nobody waits for, milliseconds.
    linger_ms: int = 50
    #: Changelog records that are to be restored first.
    restore: int = 0
    #: Where they are, for the contender that only reads them.
    changelog: str = ""
    #: 0 leaves the contender's own default.
    block_cache_mb: int = 0
    #: Windows in place of running totals, as ``kafka_streams/Windows.java`` describes them.
    windows: str = ""
    #: Joins in place of running totals, as ``kafka_streams/Joins.java`` describes them.
    joins: str = ""
    #: After how many milliseconds of silence a process that was killed is no member of its group; 0 leaves the default.
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
    """The last line of a measured process."""
    print(json.dumps(facts), flush=True)


def parse_last(said: str) -> dict[str, Any]:
    """The facts in the last line of JSON of what a process has printed."""
    lines = [line for line in said.splitlines() if line.startswith("{")]
    told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return told
