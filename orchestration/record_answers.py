"""The JSON of commands that print records of topics; ``answers`` has all other documents, and their rules."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_TEXT = "Text where the bytes are UTF-8, else hexadecimal digits behind 0x; null without one."


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow")


class ShownRecord(_Document):
    """One record."""

    partition: int
    offset: int
    time: str = Field(description="Its time, ISO 8601 in UTC.")
    key: str | None = Field(description=_TEXT)
    value: str | None = Field(description=_TEXT)
    headers: list[list[str | None]] = Field(description="Pairs of name and value.")


class Consumed(_Document):
    """Records of a topic, oldest first."""

    topic: str
    records: list[ShownRecord]


class Source(_Document):
    """The place of the message that failed."""

    topic: str
    partition: int | None
    offset: int | None


class ShownLetter(ShownRecord):
    """One dead letter; its headers are those of the message."""

    kind: str | None = Field(description="message, result or timer; null in letters of former versions.")
    source: Source
    error: str = Field(description="Type of the error.")
    reason: str
    action: str
    code_version: str


class DeadLetters(_Document):
    """The newest dead letters of a processor, oldest first. With --replay it is the answer of `apply`."""

    processor: str
    topic: str
    letters: list[ShownLetter]
