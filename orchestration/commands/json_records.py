"""Models of JSON documents about records and messages; ``json_documents`` has all other models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_TEXT = "Text where the bytes are UTF-8, else hexadecimal digits behind 0x; null without one."


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow")


class ShownRecord(_Document):
    """One Kafka record in the JSON output of a command."""

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
    """The topic, partition and offset of the message that failed."""

    topic: str
    partition: int | None
    offset: int | None


class ShownLetter(ShownRecord):
    """One dead letter; ``headers`` are the headers of the failed message."""

    kind: str | None = Field(description="message, result, timer or schedule; null in letters of former versions.")
    source: Source
    error: str = Field(description="Type of the error.")
    reason: str
    action: str
    code_version: str


class DeadLetters(_Document):
    """The newest dead letters of a processor, sorted by age, oldest first."""

    processor: str
    topic: str
    letters: list[ShownLetter]


class NewestLost(_Document):
    """The newest message that was not processed, with the reason."""

    kind: str = Field(description="late, put_aside, skipped or misplaced.")
    reason: str
    at: float = Field(description="Seconds since 1970.")
    topic: str = Field(default="", description="The input of a misplaced message; empty for others.")


class Arrivals(_Document):
    """Counts of a worker's messages that were not processed normally, since the first message of its tasks.

    These messages came too late, were put aside as dead letters, or were skipped.
    """

    late: int = Field(description="Windows that messages came too late for, and messages dropped as too old.")
    put_aside: int
    skipped: int
    misplaced: int = Field(default=0, description="Messages whose key belongs to another partition: no match here.")
    newest: NewestLost | None
    per_minute: float = Field(description="Over the last ten minutes.")
    sentence: str
    action: str | None = Field(description="The command that shows them; null when none came in the last hour.")


class ScheduleSlots(_Document):
    """A schedule: its next slot (planned time), its last fired slot, and counts of fired and missed slots.

    Times are seconds since 1970.
    """

    next: float | None
    last: float | None
    fired: int
    missed: int


class PartLag(_Document):
    """The tasks of one subtopology in one slot (place of a worker). ``lags`` maps an input topic to its lag in records.

    A lag of null is unknown. ``awaited`` are input topics whose records must arrive before messages of other input
    topics are processed. ``schedules`` has the schedules that its tasks fire, by name.
    """

    subtopology: str
    tasks: int
    running: int
    lag: int | None
    lags: dict[str, int | None]
    awaited: list[str]
    partitions: list[int] = Field(default_factory=list, description="The partitions of its tasks in this slot.")
    schedules: dict[str, ScheduleSlots]


class RegistryCopied(_Document):
    """The copy of Holdfast's registry that `holdfast registry backup` wrote."""

    file: str = Field(description="Path of the copy.")
    bytes: int


class RegistryPutBack(_Document):
    """The copy that was put back, so that Holdfast's registry has its content now."""

    file: str = Field(description="Path of the copy.")
    damaged: str | None = Field(description="Path of the damaged file that was set aside; null if it was whole.")


class ErasureProof(_Document):
    """What an erasure found and did in one place."""

    kind: str = Field(description="The kind of the place, for example `changelog`.")
    name: str = Field(description="The store, topic, table or folder.")
    outcome: str = Field(description="gone, absent, stays or unknown.")
    how: str = Field(description="How the outcome was found.")
    at: str = Field(description="When, ISO 8601 in UTC.")
    until: str = Field(description="With `stays`: until when. Empty otherwise.")


class Erased(_Document):
    """The certificate of one erasure."""

    key: str = Field(description="The keyed hash of the message key. The key itself is nowhere.")
    begun_at: str
    finished_at: str = Field(description="Empty while the erasure is not complete.")
    proven: bool = Field(description="Whether every place was read, and no copy is left.")
    sentence: str
    again: int | None = Field(description="Entries that later messages of the key made; null without `--look`.")
    proofs: list[ErasureProof]
