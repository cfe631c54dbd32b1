"""The results of drills: one JSON line for each, and the table of all drills."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass
class Result:
    """The result of one drill. Times are in seconds, by the clock of Dagster's events."""

    number: int
    title: str
    asset: str = ""
    check: str = ""
    words: str = ""
    #: Seconds from the fault until the check failed.
    detected_s: float = 0.0
    action: str = "none: the recovery sensor"
    #: Seconds from the repair action until the check passed again. If recovery repaired the fault without an action:
    #: seconds since the check failed.
    mended_s: float = 0.0
    #: Seconds from the kill of workers until each of their slots (places) has a running process again. 0 if the drill
    #: kills no worker.
    back_s: float = 0.0
    #: The number of messages, of which each took effect exactly once.
    messages: int = 0
    passed: bool = False

    def said(self, asset: str, check: str, words: str, seconds: float) -> None:
        """Record that a check reported the fault."""
        self.asset, self.check, self.words, self.detected_s = asset, check, words, round(seconds, 1)

    def acted(self, action: str) -> None:
        """Record the action that an operator took."""
        self.action = action

    def mended(self, seconds: float) -> None:
        """Record the seconds after which the check passed again."""
        self.mended_s = round(seconds, 1)

    def came_back(self, seconds: float) -> None:
        """Record the seconds after which the killed workers ran again."""
        self.back_s = round(seconds, 1)

    def exact(self, messages: int) -> None:
        """Record that each of the messages took effect exactly once."""
        self.messages = messages

    def line(self) -> str:
        """The result as a JSON line."""
        return json.dumps(asdict(self))


#: The number of the first drill whose times are compared with the promise, and the promised maximum in seconds. The
#: times are: until the check failed, until it passed again, and until killed workers ran again.
FIRST_PROMISED, PROMISED_S = 30, 60.0


def kept(result: Result) -> str:
    """The cell of the table that says whether a drill was as fast as promised: "yes", "no" with late times, or "–"."""
    if result.number < FIRST_PROMISED:
        return "–"
    measured = {"told": result.detected_s, "whole": result.mended_s, "back": result.back_s}
    late = [f"{name} {seconds:.0f} s" for name, seconds in measured.items() if seconds > PROMISED_S]
    return f"no: {', '.join(late)}" if late else "yes"


def read_results(file: Path) -> list[Result]:
    """The newest result of each drill in a file of JSON lines, ordered by number."""
    found = [Result(**json.loads(line)) for line in file.read_text().splitlines()]
    return sorted({each.number: each for each in found}.values(), key=lambda each: each.number)


def table_of(results: Iterable[Result]) -> str:
    """The table of the results, in Markdown."""
    lines = [
        "| | what is broken | Dagster reports it after | the check, and its words | the one action | whole again after "
        "| killed workers run again after | each within 60 s | messages, none lost or doubled |",
        "|--:|---|--:|---|---|--:|--:|---|--:|",
    ]
    for each in results:
        layer = each.asset.split("/")[0]
        words = shortened(each.words)
        said = f"`{each.check}` {_of(layer, each.check)}: {words}"
        lines.append(
            f"| {each.number} | {each.title} | {each.detected_s:.0f} s | {said} | {each.action} "
            f"| {each.mended_s:.0f} s | {f'{each.back_s:.0f} s' if each.back_s else '–'} | {kept(each)} "
            f"| {each.messages:,} |"
        )
    return "\n".join(lines) + "\n"


def _of(layer: str, check: str) -> str:
    if layer:
        return f"of {LAYERS.get(layer, layer)}"
    return "says" if check == "holdfast status" else "is refused"


#: How the table names each kind of asset. The key is the first part of the asset key.
LAYERS = {
    "processors": "the processor",
    "changelogs": "the changelog",
    "topics": "the source",
    "state": "the state",
    "warehouse": "the snapshot",
}
WORDS_MAX = 240


def shortened(words: str) -> str:
    """The beginning of a text, shortened for a table cell."""
    text = " ".join(words.split()).replace("|", "\\|")
    return text if len(text) <= WORDS_MAX else text[: WORDS_MAX - 1].rsplit(" ", 1)[0] + " …"
