"""Facts of a dead-letter topic whose messages will be sent again, and the content of one dead letter.

Invariants:
    - A message is sent again only to a source topic of the processor, never to its repartition topics. All other
      letters are kept.
    - A letter of unknown kind is kept, because it may not contain a message, but a window result, a timer or a
      scheduled time. Earlier versions of Holdfast did not write the kind (header ``holdfast.kind``).
    - A message is sent without the headers about its failure. If the message fails again, its new letter has only the
      headers of the last failure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from holdfast.infra.kafka.records import Headers, Record

#: Maximum number of dead letters that one plan sends again; the oldest letters are sent first.
LETTERS_MAX = 100_000


class LetterFacts(msgspec.Struct, frozen=True):
    """The dead letters that a plan would send again.

    Args:
        topic: The dead-letter topic.
        starts: Partition -> offset of the first letter that was not sent again yet.
        ends: Partition -> offset after the last letter that the plan sends again.
        sent: Input topic -> number of messages to send to it.
        kept: Number of letters that are kept, because they are no messages of a present input topic.
        errors: Error type -> number of letters.
        versions: Code version that wrote the letter -> number of letters.
        more: Whether the topic has more letters than one plan sends.
    """

    topic: str
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    sent: dict[str, int] = {}
    kept: int = 0
    errors: dict[str, int] = {}
    versions: dict[str, int] = {}
    more: bool = False


@dataclass(frozen=True, slots=True)
class Letter:
    """The content of a dead letter's headers; a missing header gives an empty text.

    ``kind`` is ``message``, ``result`` (of a window), ``timer`` or ``schedule``. ``partition``, ``offset`` and
    ``timestamp_ms`` are those of the failed message; each is None if its header is not a number.
    """

    kind: str
    topic: str
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    error: str
    reason: str
    action: str
    version: str
    #: The original headers of the failed message.
    headers: Headers

    def goes_to(self, inputs: Collection[str]) -> bool:
        """Whether the letter can be sent again to one of these input topics."""
        return self.kind == "message" and self.topic in inputs and self.partition is not None


def read_letter(record: Record) -> Letter:
    """Parses a record of a dead-letter topic."""
    # imported here, because every plan imports this module, and only plans of `replay` read letters
    from holdfast.processors.engine.runtime.task.failure_policy import FAILURE_HEADERS

    headers = record.headers or []
    ours = {name: (value or b"").decode(errors="replace") for name, value in headers if name in FAILURE_HEADERS}
    return Letter(
        kind=ours.get("holdfast.kind", ""),
        topic=ours.get("holdfast.topic", ""),
        partition=_number(ours.get("holdfast.partition", "")),
        offset=_number(ours.get("holdfast.offset", "")),
        timestamp_ms=_number(ours.get("holdfast.timestamp", "")),
        error=ours.get("holdfast.error.type", ""),
        reason=ours.get("holdfast.error", ""),
        action=ours.get("holdfast.error.action", ""),
        version=ours.get("holdfast.code_version", ""),
        headers=[pair for pair in headers if pair[0] not in FAILURE_HEADERS] or None,
    )


def replay_group(processor: str) -> str:
    """The consumer group whose offsets record which letters were already sent again."""
    return f"{processor}-dead-letters-replay"


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
