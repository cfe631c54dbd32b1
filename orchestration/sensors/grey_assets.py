"""Decides which runs make all assets green in Dagster's UI, and gives a reason if an asset stays grey.

Green: materialised, and all checks passed. Grey: not yet materialised, or a check has not run.

    state of Dagster, workers, memory ──decide──► materialisations to report, checks to judge, runs, reasons

Invariants:
    - ``decide`` is a pure function of its arguments: it reads no clock, no free memory and no storage of Dagster.
    - The requested runs only read or publish state. No run deploys or changes a processor.
    - A subject (a processor, or the installation) has one run at a time. After ``TRIES`` consecutive failed runs, no
      further run is requested until a person acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.infra.settings import Settings
from holdfast.infra.system.memory import available_mb

#: Maximum number of consecutive failed runs of a subject (a processor, or the installation). Then no run is requested.
TRIES = 3
#: Backoff after the first failed run, seconds; doubled after each further consecutive failure.
RETRY_AFTER_S = 60.0
#: Memory that a run with Spark needs in addition to the driver's heap, for the JVM itself and Python, MiB.
BESIDE_HEAP_MB = 768
#: The layers of assets (first part of the asset key) whose runs start Spark's JVM.
SPARK_LAYERS = frozenset({"warehouse"})
#: Name of the subject "whole installation". Topics, and assets without a processor, belong to this subject.
INSTALLATION = ""


@dataclass(frozen=True, slots=True)
class AssetFacts:
    """Dagster's facts about one asset. ``name`` is the asset key with slashes, for example ``state/fleet/seen_state``.

    ``layer`` is the first part of the key.
    """

    name: str
    layer: str
    materialized: bool
    #: Whether a Dagster run can materialise the asset; False for example for a topic.
    runnable: bool
    #: Names of checks that did not run since the last materialisation. The checks in ``checks_alone`` can run without a
    #: materialisation. The checks in ``checks_inside`` run only together with a materialisation.
    checks_alone: tuple[str, ...] = ()
    checks_inside: tuple[str, ...] = ()
    #: For an asset that stands for a topic: whether the topic exists. True for all other assets.
    exists: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """A processor or the whole installation, with its assets and its latest runs."""

    name: str
    assets: tuple[AssetFacts, ...]
    #: Whether the processor works, so that its state can be read. True for the installation.
    works: bool = True
    #: Whether a run for this subject (processor, or whole installation) is queued or in progress.
    busy: bool = False
    #: Number of consecutive failed runs. The next field is the seconds since the last run ended.
    failed: int = 0
    since_failure_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Available memory, and memory that a run with Spark needs, in MiB.

    ``available_mb`` is None if it is unknown, or if Spark runs elsewhere and needs no memory here.
    """

    available_mb: int | None
    needed_mb: int

    @property
    def allows(self) -> bool:
        """Whether enough memory is available to start a run with Spark."""
        return self.available_mb is None or self.available_mb >= self.needed_mb

    @property
    def sentence(self) -> str:
        """The reason why a run with Spark does not start, and the action for the user."""
        return (
            f"A run with Spark needs {self.needed_mb:,} MiB of memory, {self.available_mb:,} MiB are available. Free "
            "memory, or lower `HOLDFAST_SPARK__DRIVER_MEMORY_MB`; the sensor `kept_green` then runs it by itself."
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run to request: it materialises ``assets`` and executes all their checks.

    It also runs ``checks`` of other assets, as pairs (asset, check).
    """

    subject: str
    assets: tuple[str, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    #: Whether the run is requested now. False postpones the run, because reports of other sensors may change it.
    #: Another sensor may report some of these checks, so the run becomes smaller or unnecessary. Another sensor may
    #: also report an asset that a command deployed. Then the run can execute the checks of this asset, too.
    at_once: bool = True

    @property
    def is_publishing(self) -> bool:
        """Whether the run publishes a table; publishing starts Spark."""
        return any(each.split("/")[0] in SPARK_LAYERS for each in self.assets)


@dataclass
class Decision:
    """The result of ``decide``: reports to make, runs to request, and the reasons why assets stay grey."""

    #: Existing assets that no run can materialise (topics). The sensor reports a materialisation for each of them
    #: instead.
    present: list[str] = field(default_factory=list)
    #: Deployed assets whose checks have not run. The sensor evaluates these checks itself and reports the results,
    #: because a run with these checks would deploy the processor again.
    judged: list[str] = field(default_factory=list)
    runs: list[Wanted] = field(default_factory=list)
    #: Asset -> the reason why it is grey now, with the next action.
    reasons: dict[str, str] = field(default_factory=dict)


def decide(subjects: Sequence[Subject], memory: Memory) -> Decision:
    """Returns the runs and reports that make the assets of these subjects (processors, installation) green.

    A single run publishes the tables of all subjects, so that only one JVM starts.
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
    """The run to request for one subject (processor, or whole installation); None if no run is needed.

    Adds the subject's reports and reasons to ``decision``.
    """
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
    # With a snapshot, the state is materialised, too: this takes the checkpoint from which the snapshot is written.
    if any(each.layer in SPARK_LAYERS for each in missing):
        missing = [each for each in assets if each.layer == "state" or each in missing]
    # Checks of assets that this run materialises are left out, because the run executes these checks anyway.
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
    """Returns the reason why no run may start for this processor or installation now; empty if a run may start."""
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
    """Memory that a run with Spark needs and that is available now.

    ``available_mb`` is None if the settings name a Spark that already runs (Spark Connect).
    """
    needed = settings.spark.driver_memory_mb + BESIDE_HEAP_MB
    return Memory(None if settings.spark.over_connect else available_mb(), needed)
