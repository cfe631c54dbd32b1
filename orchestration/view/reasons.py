"""Decides why a service, processor or asset is not green in `holdfast status`, and which action comes next.

Invariants:
    - The text about a processor or a check is the text of its asset check. This module writes no second text for the
      same fault.
    - All functions are pure: the same facts give the same reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.assets.layers import PROCESSORS, is_ours
from holdfast.infra.database.records import ApplyRecord
from holdfast.infra.settings import Settings
from holdfast.infra.system.json_file import read_json
from holdfast.orchestration.view.asset_page import AssetPage, Check
from holdfast.processors.application.broken_definition import BrokenDefinition
from holdfast.processors.lifecycle.plans.requests import INSTALLATION
from holdfast.processors.lifecycle.recovery.working_check import ACTION_MARK, WORKING, Answer, Colour

#: Colours in order of severity, most severe first.
_GRAVITY: tuple[Colour, ...] = ("red", "yellow", "grey")
#: Service -> sentence about the features that do not work while the service is down.
_MISSED = {
    "kafka": "The broker does not run: no processor works.",
    "supervisor": "The supervisor does not run: it starts and ends the processors.",
    "daemon": "Dagster's daemon does not run: nothing is recovered, checked or published.",
    "dagster": "Dagster's webserver does not run: results of its checks are not shown here.",
}
#: Matches the line of a traceback that begins with an error class, unless this is an error class of Dagster.
_ERROR = re.compile(r"(?!dagster)[A-Za-z_.]*(Error|Exception|Exit)\b")
#: Suffix of the status text of a supervisor that runs but does not answer.
HANGS = "does not answer"
#: The first word of an action text that tells the user to do nothing.
NO_ACTION = "Nothing"
#: The action for the user if the sensor `kept_green` will soon make the asset green by itself.
_SOON = (
    "Nothing for five minutes after its processor works: the sensor `kept_green` does it. Then read the last tick of "
    "that sensor in Dagster."
)
#: The action for an asset of the user's project that has no automation condition.
_OWN = "Materialise it on its page in Dagster, or give it an automation condition there (docs/projects.md)."
_NOTHING = "Nothing; it passes without an action."


@dataclass(frozen=True, slots=True)
class Reason:
    """A sentence that says why one subject (for example ``processor fleet``) is not green, and the next action."""

    subject: str
    colour: Colour
    reason: str
    action: str

    @property
    def by_itself(self) -> bool:
        """Whether the service, processor or asset is grey and will turn green without an action of a person."""
        return self.colour == "grey" and self.action.startswith(NO_ACTION)


def grey_file(settings: Settings) -> Path:
    """Path of the JSON file in which the sensor `kept_green` writes: name of a grey asset -> reason and action."""
    return settings.paths.dagster / "grey.json"


def read_grey(settings: Settings) -> dict[str, str]:
    """Name of a grey asset -> reason and action, from ``grey_file``; empty if the file is absent."""
    return read_json(grey_file(settings), dict[str, str]) or {}


def of_services(services: Mapping[str, str | None]) -> list[Reason]:
    """One reason for each service of this home folder that does not run or does not answer.

    A service that does not run is grey, because it may run elsewhere. A supervisor that does not answer is red.
    """
    found = [
        Reason(f"service {name}", "grey", _MISSED[name], "Start it with `holdfast up`.")
        for name, address in services.items()
        if address is None
    ]
    if (services.get("supervisor") or "").endswith(HANGS):
        said = "The supervisor runs, but does not answer: nothing can be started, stopped or recovered."
        found.append(Reason("service supervisor", "red", said, "Run `holdfast down`, then `holdfast up`."))
    return found


def of_locations(unloaded: Mapping[str, str]) -> list[Reason]:
    """One reason for each code location that the daemon can't load; ``unloaded`` maps a location to its error."""
    return [
        Reason(
            f"code location {name}",
            "red",
            f"Dagster can't load it: {_last_line(error)} Its assets, jobs, sensors and schedules stand still.",
            "Correct the code that the error names; the daemon loads it again within a minute. The whole error is "
            "in the log of the daemon, `logs/dagster-daemon.log` in the home folder.",
        )
        for name, error in sorted(unloaded.items())
    ]


def _last_line(error: str) -> str:
    """Returns the last line of a traceback that names an error, as a sentence; if no line does, the first line."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if _ERROR.match(line)), lines[0] if lines else "no error is known")
    return said[:300].rstrip(".") + "."


def of_processor(name: str, answer: Answer) -> list[Reason]:
    """The reason from a processor's check `working`; empty if the processor works or was stopped on purpose."""
    if answer.colour in ("green", "grey"):  # A grey processor was stopped on purpose, so nothing is wrong.
        return []
    sentence, action = _split(answer.text)
    return [Reason(f"processor {name}", answer.colour, sentence, action or _NOTHING)]


def of_apply(begun: ApplyRecord, answer: Answer) -> Reason:
    """The reason for an interrupted apply (executed plan) of the installation, or of a never deployed processor."""
    sentence, action = _split(answer.text)
    subject = begun.processor if begun.processor == INSTALLATION else f"processor {begun.processor}"
    return Reason(subject, answer.colour, sentence, action)


def of_undeployed(name: str) -> Reason:
    """The reason for a processor that is defined but was never deployed."""
    return Reason(
        f"processor {name}", "grey", "It was never deployed.", f"Deploy it with `holdfast apply deploy {name}`."
    )


def of_assets(
    pages: Iterable[AssetPage],
    running: frozenset[str],
    why_grey: Mapping[str, str] | None = None,
    dagster: str = "",
) -> list[Reason]:
    """One reason for each failed check, and for each asset that is not materialised or not checked.

    ``running`` are the processors that should run. Assets of processors that should not run are left out, because
    a separate reason already reports such a processor. ``why_grey`` is the result of ``read_grey``. ``dagster`` is the
    address of Dagster's UI, where the pages of failed runs are.
    """
    found: list[Reason] = []
    for page in pages:
        ours = is_ours(page.key)
        if ours and len(page.key) == 3 and page.key[1] not in running:
            continue
        subject = f"asset {page.name}"
        waiting, soon = (why_grey or {}).get(page.name, ""), _SOON if ours else _next_of_own(page)
        failing = [_of_check(subject, check, dagster) for check in page.checks if not _is_told(page, check)]
        found += [each for each in failing if each is not None]
        absent = 0 if page.partitions is None else page.partitions.num_partitions - page.partitions.num_materialized - 1
        unrun = [check.name for check in page.checks if check.last is None]
        if page.failed_run is not None:
            action = _next_of_failed(page, dagster)
            found.append(Reason(subject, "red", f"Its last run, {page.failed_run}, failed.", action))
        elif not page.materialized:
            found.append(Reason(subject, "grey", "It was never materialised.", waiting or soon))
        elif absent > 0:  # The newest partition is not counted in `absent`, because the schedule will materialise it.
            missing = f"{absent} of its time partitions are not materialised."
            found.append(Reason(subject, "grey", missing, "Materialise them on its page in Dagster."))
        elif unrun:
            missing = f"Not run since it was materialised: {', '.join(unrun)}."
            found.append(Reason(subject, "grey", missing, waiting or soon))
    return found


def of_definition(broken: BrokenDefinition) -> Reason:
    """The reason for a processor definition that can't be imported, with the texts of its asset check."""
    return Reason(f"definition {broken.target}", "red", f"{broken.sentence}.", broken.action)


def ordered(reasons: Iterable[Reason]) -> list[Reason]:
    """The reasons sorted by severity, most severe first; reasons of one colour keep their order."""
    return sorted(reasons, key=lambda each: _GRAVITY.index(each.colour))


def grouped(reasons: Iterable[Reason]) -> list[tuple[tuple[str, ...], Reason]]:
    """Merges reasons with equal texts: returns pairs of (all subjects with this text, reason).

    A subject is a service, processor or asset. The pairs have the order of their first subjects.
    """
    found: dict[tuple[str, str, str], list[Reason]] = {}
    for each in reasons:
        found.setdefault((each.colour, each.reason, each.action), []).append(each)
    return [(tuple(each.subject for each in same), same[0]) for same in found.values()]


def colour_of(reasons: Sequence[Reason]) -> Colour:
    """The most severe colour of all reasons; green if there is no reason."""
    return ordered(reasons)[0].colour if reasons else "green"


def _next_of_own(page: AssetPage) -> str:
    """The next action for a grey asset that the user's project defines."""
    if page.condition is None:
        return _OWN
    return (
        f"Nothing; its automation condition ({page.condition}) materialises it after the assets that it depends on. If "
        "they are green and it is not, read its page in Dagster: Automation."
    )


def _log_of(run_id: str | None, dagster: str) -> str:
    """The action that opens a run's log: the address of its page, if run and address are known."""
    page = f"open {dagster}/runs/{run_id}" if run_id and dagster else "in Dagster, open the run of its page"
    return f"Read why in the run's log: {page}"


def _next_of_failed(page: AssetPage, dagster: str) -> str:
    """The next action for an asset of the user's project whose last run failed."""
    again = "" if page.condition is None else f"; its automation condition ({page.condition}) repeats no failed run"
    return f"{_log_of(page.failed_run, dagster)}. Then materialise the asset on its page{again}."


def _of_check(subject: str, check: Check, dagster: str) -> Reason | None:
    last = check.last
    if last is None or last.status in ("SUCCEEDED", "IN_PROGRESS"):
        return None
    if last.evaluation is None:
        return Reason(f"{subject}, check {check.name}", "red", "Its run failed.", f"{_log_of(last.run_id, dagster)}.")
    sentence, action = _split(last.evaluation.description or "It failed.")
    warns = last.evaluation.severity == "WARN"
    return Reason(f"{subject}, check {check.name}", "yellow" if warns else "red", sentence, action or _NOTHING)


def _is_told(page: AssetPage, check: Check) -> bool:
    """Whether the line about the processor already contains the result of this check.

    The line about the processor does not contain a mere warning (growing lag), so the warning of the check is reported.
    """
    warns = check.last is not None and check.last.evaluation is not None and check.last.evaluation.severity == "WARN"
    return page.key[0] == PROCESSORS and check.name == WORKING and not warns


def _split(text: str) -> tuple[str, str]:
    """Splits the text of a check into its description and its action."""
    sentence, _, action = text.partition(ACTION_MARK)
    return sentence, action
