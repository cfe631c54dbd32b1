"""Models of the JSON documents that commands print with ``--json``. The JSON Schemas are generated from these models.

Invariants:
    - A field is never renamed or removed, and its type is only extended. New fields may be added, so a program must
      ignore fields that it does not know.
    - Every command with ``--json`` is in ``ANSWERS``. Tests validate the printed documents with these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from holdfast.orchestration.commands.json_records import (
    Arrivals,
    Consumed,
    DeadLetters,
    Erased,
    PartLag,
    RegistryCopied,
    RegistryPutBack,
)


class Answer(BaseModel):
    """Base class of all documents. Programs that read a document must ignore unknown fields."""

    model_config = ConfigDict(extra="allow")


class Failure(Answer):
    """An error, with the one action that repairs it."""

    type: str = Field(description="Name of the error.")
    cause: str = Field(description="Kind of fault; empty when unknown.")
    message: str
    action: str = Field(description="The command or edit that mends it.")
    fields: dict[str, str | int | float | bool | None]


class Failed(Answer):
    """The document that a failed command prints instead of its result."""

    error: Failure


class Version(Answer):
    """The installed version of Holdfast."""

    version: str


class Stage(Answer):
    """A finished stage (step) of an apply; an apply is one execution of a plan. ``seconds`` is the stage's duration."""

    number: int
    text: str
    seconds: float


class Applied(Answer):
    """A finished execution of a plan (apply). ``apply`` is its number, or null if there was nothing to do."""

    apply: int | None
    plan: str = Field(description="Hash of the plan.")
    stages: list[Stage]
    seconds: float


class Verdict(Answer):
    """The result of planning: nothing to do, ready to apply, or refused."""

    type: Literal["nothing_to_do", "ready", "refused"]
    sentence: str
    action: str = Field(default="", description="What to do instead of a refused plan.")


class Planned(Answer):
    """A plan. ``seconds`` is the estimated duration; null means that a value is unknown."""

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
    """A plan with its full explanation as text."""

    text: str


class ApplyRow(Answer):
    """One recorded apply (execution of a plan), as ``holdfast apply list`` prints it."""

    id: int
    processor: str
    verb: str
    plan: str
    who: str
    started_at: str
    outcome: str
    stages_done: int
    reason: str
    action: str | None


class Abandoned(Answer):
    """An apply (execution of a plan) that was closed before all its stages were done."""

    apply: int
    processor: str
    verb: str
    stages_done: int
    told: list[str] = Field(description="What was done, and what the apply leaves.")


class Row(Answer):
    """One entry of a store; export files have the same format."""

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
    """A partition whose state was read.

    ``inputs`` maps an input topic to an offset. The state contains the effects of all messages before this offset.
    """

    partition: int
    slot: str
    inputs: dict[str, int]


class Queried(Answer):
    """Entries of a store, as the command ``query`` found them."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    processor: str
    store: str
    where: str = Field(alias="from", description="Where they were read: the running workers, or local state.")
    rows: list[Row]
    more: bool = Field(description="Whether the selection has further entries.")
    places: list[Place]


class Produced(Answer):
    """The number of records that were sent to a topic and acknowledged by Kafka."""

    topic: str
    records: int
    seconds: float


class Finding(Answer):
    """One check of ``holdfast doctor``: the observed value, the expected value and the action."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    seen: str
    expected: str
    action: str


class Examined(Answer):
    """All findings of ``holdfast doctor``, and the most serious verdict."""

    verdict: Literal["ok", "warn", "fail"]
    findings: list[Finding]


class Snapshotted(Answer):
    """Rows from one version of a store's warehouse table."""

    table: str
    version: str
    tags: list[str]
    snapshot: str | None
    taken_at: str
    age_s: float
    keys: int | None
    offsets: dict[str, dict[str, int]] = Field(description="Input topic, then partition, then next offset.")
    rows: list[dict[str, Any]]


class ProcessorRow(Answer):
    """One slot (numbered place of a worker) of a processor, with the figures of its worker. Null means unknown."""

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
    """An open incident, in short form."""

    id: int
    processor: str
    kind: str


class Status(Answer):
    """The document of ``holdfast status``: services, processors, open incidents, and unfinished executions of plans."""

    home: str
    services: dict[str, str | None]
    processors: list[ProcessorRow]
    incidents: list[IncidentShort]
    adopted: list[dict[str, Any]]
    applies: list[dict[str, Any]]


class OwnerRow(Answer):
    """One kind of data that uses disk space, for example the logs; ``bytes`` is its size."""

    owner: str
    bytes: int
    what: str
    places: list[str]
    to_make_room: str


class Sizes(Answer):
    """The kinds of data that use disk space, largest first, as `holdfast status --sizes` prints them."""

    home: str
    has_room: bool
    sentence: str
    action: str | None
    owners: list[OwnerRow]


class Watched(Answer):
    """One observation of all processors by ``holdfast top``. It is printed as one line of JSON."""

    processors: list[dict[str, Any]]
    incidents: list[IncidentShort]
    failures: list[str]


class Audited(Answer):
    """The result of comparing a store with its changelog and, if requested, with its warehouse table."""

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
    """The result of a test restore (rehearsal)."""

    passed: bool
    text: str


class Orphans(Answer):
    """Resources without an owner. ``unseen`` has a sentence for each kind of resource that could not be read."""

    orphans: list[dict[str, Any]]
    unseen: list[str]


class IncidentRow(Answer):
    """One incident in the list of incidents."""

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
    """The Spark process that runs on this machine between runs (warm Spark)."""

    pid: int
    url: str


class StartedProcessor(Answer):
    """The result of ``holdfast up`` for one processor of the project."""

    processor: str
    running: bool
    sentence: str = Field(description="What was done, or why it does not run.")
    lineage: str | None = Field(default=None, description="The page in Dagster with its lineage.")


class Up(Answer):
    """The running services with their addresses, and the result for each processor of the project."""

    kafka: str
    registry: str
    supervisor: str
    spark: str | None = Field(None, description="Only where Spark stays warm.")
    daemon: str
    dagster: str
    project: str | None = Field(None, description="The project's file; absent without a project.")
    processors: list[StartedProcessor] = Field(default_factory=list, description="Absent without a project.")


class Stopped(Answer):
    """The result of a stop: whether something was stopped, or the names of the stopped services."""

    stopped: bool | list[str]


class Archived(Answer):
    """The file with Spark's archived Java classes; ``bytes`` is its size."""

    file: str
    bytes: int


class Origin(Answer):
    """The source of a setting's value."""

    kind: str = Field(description="default, file, variable or flag.")
    place: str = Field(description="The file and its line, the variable, or the flag.")


class Setting(Answer):
    """One setting with its value and source; the value of a secret is masked."""

    name: str
    variable: str
    value: Any
    source: Origin
    secret: bool
    meaning: str


class Configuration(Answer):
    """All settings. ``project`` is the path of the project file; null without a project."""

    project: str | None
    settings: list[Setting]


class Part(Answer):
    """A subtopology: input topics that its tasks read together, and the stores that they share."""

    name: str
    inputs: list[str]
    stores: list[str]


class Grouped(Answer):
    """A ``group_by`` step: its repartition topic, and the input topics whose messages are written to it."""

    name: str
    topic: str
    sources: list[str]


class Drawn(Answer):
    """A processor's topology, as a text drawing and as data."""

    processor: str
    drawing: str
    subtopologies: list[Part]
    repartitions: list[Grouped]


class Made(Answer):
    """The files of a new project, relative to its folder."""

    folder: str
    files: list[str]


class Event(Answer):
    """One event in a processor's history, for example an executed plan or an incident."""

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
#: Maps each command, for example ``apply list``, to the type of its JSON document. The verbs of ``plan``, ``explain``
#: and ``apply`` are not in the mapping: they use the type of their group.
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
    "registry backup": TypeAdapter(RegistryCopied),
    "registry restore": TypeAdapter(RegistryPutBack),
    **dict.fromkeys(("deploy", "rollback", "restart", "restore", "scale", "stop", "erase"), _APPLIED),
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
    "erased": TypeAdapter(list[Erased]),
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
    """The type of the JSON document that a command prints; None if the command prints no JSON."""
    group = words.partition(" ")[0]
    return ANSWERS.get(words) or (ANSWERS.get(group) if group in ("plan", "explain", "apply") else None)
