"""Decides which runs make all assets green, and why an asset stays grey; pure functions.

    facts of Dagster, workers, memory ──decide──► materialisations to report, checks to judge, runs, reasons

Invariants:
    - The same facts give the same decision: ``decide`` reads no clock, no memory and no storage of Dagster.
    - Nothing here deploys or changes a processor: only what reads state, or publishes it, is run.
    - A subject has one run at a time; after ``TRIES`` failed runs in a row it waits for a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.infra.settings import Settings
from holdfast.infra.system.memory import available_mb

#: Runs of a subject that may fail in a row.
TRIES = 3
#: Pause after a failed run, seconds; doubled for each further one.
RETRY_AFTER_S = 60.0
#: Memory in addition to the driver's heap that a run with Spark needs, for the JVM itself and Python, MiB.
BESIDE_HEAP_MB = 768
#: The layers whose runs start Spark's JVM.
SPARK_LAYERS = frozenset({"warehouse"})
#: The subject of topics and of assets of the installation.
INSTALLATION = ""


@dataclass(frozen=True, slots=True)
class AssetFacts:
    """Dagster's facts about one asset. Names of assets are keys as text, with ``/``."""

    name: str
    layer: str
    materialized: bool
    #: Whether a run can materialise it.
    runnable: bool
    #: Checks not executed since the last materialisation: separate checks, and checks of a materialising run.
    checks_alone: tuple[str, ...] = ()
    checks_inside: tuple[str, ...] = ()
    #: Whether the topic exists; for a topic that only other programs write.
    exists: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """A processor or the installation, with its assets and runs."""

    name: str
    assets: tuple[AssetFacts, ...]
    #: Whether the processor works, so that its state can be read; for the installation, whether its broker answers.
    works: bool = True
    #: Whether a run for this subject is queued or in progress.
    busy: bool = False
    #: Number of consecutive failed runs, and seconds since the last one ended.
    failed: int = 0
    since_failure_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory for a run with Spark, MiB; ``available_mb`` is None when it is unknown or not needed."""

    available_mb: int | None
    needed_mb: int

    @property
    def allows(self) -> bool:
        """Whether such a run may start."""
        return self.available_mb is None or self.available_mb >= self.needed_mb

    @property
    def sentence(self) -> str:
        """Why a run with Spark does not start, and the action."""
        return (
            f"A run with Spark needs {self.needed_mb:,} MiB of memory, {self.available_mb:,} MiB are available. Free "
            "memory, or lower `HOLDFAST_SPARK__DRIVER_MEMORY_MB`; the sensor `kept_green` then runs it by itself."
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """One run: the assets that it materialises with all their checks, and checks of other assets, as (asset, check)."""

    subject: str
    assets: tuple[str, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    #: Whether the run starts now. Otherwise it waits: sensors may still report its checks, or assets that a command
    #: deployed, whose checks the same run then executes.
    at_once: bool = True

    @property
    def is_publishing(self) -> bool:
        """Whether the run publishes a table, which starts Spark."""
        return any(each.split("/")[0] in SPARK_LAYERS for each in self.assets)


@dataclass
class Decision:
    """The actions to take now."""

    #: Assets without a materialising run, to be reported as present.
    present: list[str] = field(default_factory=list)
    #: Assets whose checks are part of a materialisation, to be judged and reported without a run.
    judged: list[str] = field(default_factory=list)
    runs: list[Wanted] = field(default_factory=list)
    #: Asset -> why it is grey now, with the next action.
    reasons: dict[str, str] = field(default_factory=dict)


def decide(subjects: Sequence[Subject], memory: Memory) -> Decision:
    """The runs and reports that make these subjects green.

    One run publishes all tables, so that only one JVM starts.
    """
    decision = Decision()
    publishing: list[Wanted] = []
    for subject in subjects:
        wanted = _of_subject(subject, memory, decision)
        if wanted is not None and wanted.is_publishing:
            publishing.append(wanted)
        elif wanted is not None:
            decision.runs.append(wanted)
    if publishing:
        names = "+".join(each.subject for each in publishing)
        assets = tuple(asset for each in publishing for asset in each.assets)
        checks = tuple(check for each in publishing for check in each.checks)
        decision.runs.append(Wanted(names, assets, checks, at_once=all(each.at_once for each in publishing)))
    return decision


def _of_subject(subject: Subject, memory: Memory, decision: Decision) -> Wanted | None:
    """The run of one subject; also fills the other fields of the decision."""
    for asset in subject.assets:
        if not asset.materialized and not asset.runnable and asset.exists:
            decision.present.append(asset.name)
        elif asset.materialized and asset.checks_inside and asset.layer in ("changelogs", "processors"):
            decision.judged.append(asset.name)
    assets = [each for each in subject.assets if each.runnable and each.layer in ("state", *SPARK_LAYERS)]
    missing = [each for each in assets if not each.materialized]
    if not memory.allows:
        withheld = [each for each in missing if each.layer in SPARK_LAYERS]
        decision.reasons |= {each.name: memory.sentence for each in withheld}
        missing = [each for each in missing if each.layer not in SPARK_LAYERS]
    # a snapshot needs the newest checkpoint, and materialising the state makes that checkpoint
    if any(each.layer in SPARK_LAYERS for each in missing):
        missing = [each for each in assets if each.layer == "state" or each in missing]
    # a run that materialises an asset runs its checks, too
    others = [each for each in subject.assets if each not in missing]
    checks = tuple((each.name, check) for each in others for check in each.checks_alone)
    if not missing and not checks:
        return None
    waiting = _waiting(subject)
    if waiting:
        named = [each.name for each in missing] or [name for name, _ in checks]
        decision.reasons |= dict.fromkeys(named, waiting)
        return None
    untold = any(not each.materialized for each in others if each.layer in ("changelogs", "processors"))
    names = tuple(each.name for each in missing)
    return Wanted(subject.name, names, checks, at_once=bool(missing) and not untold)


def _waiting(subject: Subject) -> str:
    """Why no run starts for a subject now; empty when one may."""
    if not subject.works:
        return f"Nothing; it is done as soon as processor {subject.name} works." if subject.name else ""
    if subject.busy:
        return "Nothing; a run for it is under way."
    if subject.failed >= TRIES:
        what = f"processor {subject.name}" if subject.name else "the installation"
        return (
            f"Read the log of the last run for {what} with the tag `holdfast/green` in Dagster: {subject.failed} runs "
            "failed in a row. Remove the cause, then materialise the asset there."
        )
    if subject.failed and subject.since_failure_s < RETRY_AFTER_S * 2 ** (subject.failed - 1):
        return "Nothing; its last run failed and is repeated soon."
    return ""


def spark_memory(settings: Settings) -> Memory:
    """The memory for a run with Spark now; no memory is needed if Spark runs in another process."""
    needed = settings.spark.driver_memory_mb + BESIDE_HEAP_MB
    return Memory(None if settings.spark.over_connect else available_mb(), needed)
