"""The JSON of commands with ``--json``: one model for each command, which is also the source of its JSON Schema.

Invariants:
    - A field is never renamed or removed, and its type only widens. New fields may come: programs ignore what they do
      not know.
    - Every command with ``--json`` is in ``ANSWERS``; tests compare what commands print with these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from holdfast.orchestration.commands.json_records import Arrivals, Consumed, DeadLetters


class Answer(BaseModel):
    """Base of all documents; a program that reads one ignores fields that it does not know."""

    model_config = ConfigDict(extra="allow")


class Failure(Answer):
    """What is wrong, and the one thing that mends it."""

    type: str = Field(description="Name of the error.")
    cause: str = Field(description="Kind of fault; empty when unknown.")
    message: str
    action: str = Field(description="The command or edit that mends it.")
    fields: dict[str, str | int | float | bool | None]


class Failed(Answer):
    """Printed by every command in place of its answer when it fails."""

    error: Failure


class Version(Answer):
    """The installed version."""

    version: str


class Stage(Answer):
    """A stage that was carried out; its duration in seconds."""

    number: int
    text: str
    seconds: float


class Applied(Answer):
    """An apply that is done; ``apply`` is null when there was nothing to do."""

    apply: int | None
    plan: str = Field(description="Hash of the plan.")
    stages: list[Stage]
    seconds: float


class Verdict(Answer):
    """What a plan comes to."""

    type: Literal["nothing_to_do", "ready", "refused"]
    sentence: str
    action: str = Field(default="", description="What to do instead of a refused plan.")


class Planned(Answer):
    """A plan; sizes in bytes, durations in seconds, null when unknown."""

    verb: str
    processor: str
    hash: str
    changes: bool
    destructive: bool
    verdict: Verdict
    request: dict[str, Any]
    stages: list[dict[str, Any]] = Field(description="Each with its `type` and `says`, and its own parameters.")
    findings: list[str]
    kept: list[str]
    deleted: list[str]
    undo: str
    keys: int | None
    size_bytes: int | None
    seconds: float | None
    estimate: str
    basis: dict[str, Any] = Field(description="The facts that the plan depends on.")
    after_kill: Literal["plan anew", "go on"]


class Explained(Planned):
    """A plan with its explanation."""

    text: str


class ApplyRow(Answer):
    """A recorded apply."""

    id: int
    processor: str
    verb: str
    plan: str
    who: str
    started_at: str
    outcome: str
    stages_done: int
    reason: str


class Abandoned(Answer):
    """An apply that was ended without its remaining stages."""

    apply: int
    processor: str
    verb: str
    stages_done: int
    told: list[str] = Field(description="What was done, and what the apply leaves.")


class Row(Answer):
    """An entry of a store, as in an export file."""

    store: str
    partition: int
    state: str
    timestamp_ms: int
    slot: str
    key: str | None = Field(default=None, description="The message key; absent when it is no text.")
    key_base64: str | None = None
    value: Any = Field(default=None, description="The value; absent when it is bytes.")
    value_base64: str | None = None


class Place(Answer):
    """A partition that was read, and the next offset of each input topic that its entries hold."""

    partition: int
    slot: str
    inputs: dict[str, int]


class Queried(Answer):
    """Entries of a store."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    processor: str
    store: str
    where: str = Field(alias="from", description="Where they were read: the running workers, or local state.")
    rows: list[Row]
    more: bool = Field(description="Whether the selection has further entries.")
    places: list[Place]


class Produced(Answer):
    """Records that were sent and acknowledged."""

    topic: str
    records: int
    seconds: float


class Finding(Answer):
    """One check of the doctor."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    seen: str
    expected: str
    action: str


class Examined(Answer):
    """What the doctor found."""

    verdict: Literal["ok", "warn", "fail"]
    findings: list[Finding]


class Snapshotted(Answer):
    """Rows of a version of a store's table."""

    table: str
    version: str
    tags: list[str]
    snapshot: str | None
    taken_at: str
    age_s: float
    keys: int | None
    offsets: dict[str, dict[str, int]] = Field(description="Input topic, then partition, then next offset.")
    rows: list[dict[str, Any]]


class PartLag(Answer):
    """A subtopology in one slot: its tasks, the records left to process by input topic, null where unknown, and the
    inputs that messages of others wait for."""

    subtopology: str
    tasks: int
    running: int
    lag: int | None
    lags: dict[str, int | None]
    awaited: list[str]


class ProcessorRow(Answer):
    """One slot of a processor; null where unknown."""

    processor: str
    desired: str
    diagnosis: str
    sentence: str
    paused: bool
    slot: str | None
    code_version: str | None = Field(description="The version that the worker says it runs.")
    deployed_version: str | None = Field(default=None, description="The version that is recorded as deployed.")
    phase: str | None
    lag: int | None
    stream_time: float | None = Field(description="Seconds since 1970.")
    timers: dict[str, float | bool | None] | None = Field(
        description="Those that have not fired: how many, whether there are more than were counted, and by clock when "
        "the next one is due, in seconds since 1970."
    )
    subtopologies: list[PartLag]
    processed: int | None
    arrivals: Arrivals | None = Field(default=None, description="Messages that did not arrive; null when all did.")
    pid: int | None
    started_at: float | None = Field(default=None, description="Seconds since 1970, by the worker's clock.")
    uptime_s: float | None = None
    settings: dict[str, str | None] | None = Field(
        default=None, description="The settings that the worker was started with; secrets by name only."
    )


class IncidentShort(Answer):
    """An open incident."""

    id: int
    processor: str
    kind: str


class Status(Answer):
    """Services, processors, open incidents and open applies."""

    home: str
    services: dict[str, str | None]
    processors: list[ProcessorRow]
    incidents: list[IncidentShort]
    adopted: list[dict[str, Any]]
    applies: list[dict[str, Any]]


class OwnerRow(Answer):
    """An owner of disk space."""

    owner: str
    bytes: int
    what: str
    places: list[str]
    to_make_room: str


class Sizes(Answer):
    """What uses the disk, largest first: the answer of `holdfast status --sizes`."""

    home: str
    has_room: bool
    sentence: str
    action: str | None
    owners: list[OwnerRow]


class Watched(Answer):
    """One look of `holdfast top`, printed as one line."""

    processors: list[dict[str, Any]]
    incidents: list[IncidentShort]
    failures: list[str]


class Audited(Answer):
    """The comparison of a store with its copies."""

    store: str
    equal: bool
    differences: list[str]
    warnings: list[str]
    partitions: list[dict[str, Any]]
    keys_differing: int
    keys_unjudged: int
    keys: list[dict[str, Any]]
    repair: list[str]
    snapshot: dict[str, Any] | None


class Rehearsed(Answer):
    """A rehearsal of a restore."""

    passed: bool
    text: str


class Orphans(Answer):
    """Resources without an owner, and what could not be looked at."""

    orphans: list[dict[str, Any]]
    unseen: list[str]


class IncidentRow(Answer):
    """An incident of the list."""

    id: int
    processor: str
    kind: str
    opened_at: str
    state: str
    attempts: int
    acknowledged_by: str | None
    action: str | None


class IncidentShown(Answer):
    """One incident with its timeline."""

    id: int
    processor: str
    kind: str


class SparkServer(Answer):
    """The warm Spark of this machine."""

    pid: int
    url: str


class StartedProcessor(Answer):
    """A processor of the project, after ``holdfast up``."""

    processor: str
    running: bool
    sentence: str = Field(description="What was done, or why it does not run.")


class Up(Answer):
    """The services that run, with their addresses, and the project's processors."""

    kafka: str
    registry: str
    supervisor: str
    spark: str | None = Field(None, description="Only where Spark stays warm.")
    daemon: str
    dagster: str
    project: str | None = Field(None, description="The project's file; absent without a project.")
    processors: list[StartedProcessor] = Field(default_factory=list, description="Absent without a project.")


class Stopped(Answer):
    """Whether, or what, was stopped."""

    stopped: bool | list[str]


class Archived(Answer):
    """The archive of Spark's classes; ``bytes`` is its size."""

    file: str
    bytes: int


class Origin(Answer):
    """Where the value of a setting came from."""

    kind: str = Field(description="default, file, variable or flag.")
    place: str = Field(description="The file and its line, the variable, or the flag.")


class Setting(Answer):
    """A setting; the value of a secret is masked."""

    name: str
    variable: str
    value: Any
    source: Origin
    secret: bool
    meaning: str


class Configuration(Answer):
    """The settings, and the project file that gives some of them; null without a project."""

    project: str | None
    settings: list[Setting]


class Part(Answer):
    """A subtopology: the topics that its tasks read together, and their stores."""

    name: str
    inputs: list[str]
    stores: list[str]


class Grouped(Answer):
    """A ``group_by``: its repartition topic, and the inputs whose messages it has."""

    name: str
    topic: str
    sources: list[str]


class Drawn(Answer):
    """What a processor consists of, as a drawing and in parts."""

    processor: str
    drawing: str
    subtopologies: list[Part]
    repartitions: list[Grouped]


class Made(Answer):
    """The files of a new project, relative to its folder."""

    folder: str
    files: list[str]


class Event(Answer):
    """One event of a processor's history."""

    at: str = Field(description="When it began, ISO 8601 in UTC.")
    kind: str
    outcome: str
    text: str
    who: str
    plan: str = Field(description="Hash of the plan; empty without a plan.")
    seconds: float | None
    stores: list[str]
    details: list[str]
    run: str | None = Field(description="The Dagster run that did it.")


_APPLIED: Any = TypeAdapter(Applied)
#: Words of a command -> the type of its answer. Every verb of ``plan``, ``explain`` and ``apply`` has its group's type.
ANSWERS: dict[str, Any] = {
    "error": TypeAdapter(Failed),
    "version": TypeAdapter(Version),
    "plan": TypeAdapter(Planned),
    "explain": TypeAdapter(Explained),
    "apply": _APPLIED,
    "apply list": TypeAdapter(list[ApplyRow]),
    "apply resume": _APPLIED,
    "apply abandon": TypeAdapter(Abandoned),
    "registry adopt": _APPLIED,
    **dict.fromkeys(("deploy", "rollback", "restart", "restore", "scale", "stop"), _APPLIED),
    "explain topology": TypeAdapter(Drawn),
    "query": TypeAdapter(Queried),
    "produce": TypeAdapter(Produced),
    "consume": TypeAdapter(Consumed),
    "dead-letters": TypeAdapter(DeadLetters | Applied),
    "doctor": TypeAdapter(Examined),
    "snapshot": TypeAdapter(Snapshotted),
    "status": TypeAdapter(Status),
    "status --sizes": TypeAdapter(Sizes),
    "top": TypeAdapter(Watched),
    "audit": TypeAdapter(list[Audited]),
    "rehearse": TypeAdapter(Rehearsed),
    "orphans": TypeAdapter(Orphans),
    "incidents list": TypeAdapter(list[IncidentRow]),
    "incidents show": TypeAdapter(IncidentShown),
    "incidents acknowledge": TypeAdapter(IncidentRow),
    "incidents retry": TypeAdapter(IncidentRow),
    "spark start": TypeAdapter(SparkServer),
    "spark stop": TypeAdapter(Stopped),
    "spark archive": TypeAdapter(Archived),
    "spark status": TypeAdapter(SparkServer | None),
    "warehouse register": TypeAdapter(dict[str, str]),
    "up": TypeAdapter(Up),
    "config": TypeAdapter(Configuration),
    "init": TypeAdapter(Made),
    "history": TypeAdapter(list[Event]),
    "down": TypeAdapter(Stopped),
}


def answer_of(words: str) -> Any:
    """The type of a command's answer; None when the command prints no JSON."""
    group = words.partition(" ")[0]
    return ANSWERS.get(words) or (ANSWERS.get(group) if group in ("plan", "explain", "apply") else None)
