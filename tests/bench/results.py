"""The results of all runs, one JSON line each, kept in a file so that a bench can be done in parts.

The kinds of lines are ``run`` (a contender in a case), ``figures`` (one run of a scenario), ``conditions`` and
``wrong``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.cases import Case, Kind, Result

Figures = Mapping[str, float]


@dataclass(slots=True)
class Results:
    """The results in a file, and the results added since. Without a file, results are only in memory."""

    path: Path | None = None
    conditions: list[str] = field(default_factory=list)
    #: By case name: the case, and the runs of each contender.
    runs: dict[str, tuple[Case, dict[str, list[Result]]]] = field(default_factory=dict)
    #: The name of each contender in tables.
    titles: dict[str, str] = field(default_factory=dict)
    #: By scenario name: its title, and the measured figures of all runs.
    figures: dict[str, tuple[str, dict[str, list[Figures]]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @staticmethod
    def kept_in(path: Path | None) -> Results:
        """Load the results in a file. Later results are appended to the file."""
        results = Results(path)
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                results._take(json.loads(line))
        return results

    def add_run(self, case: Case, contender: str, title: str, result: Result) -> None:
        told = {"case": {**asdict(case), "kind": case.kind.value}, "contender": contender, "title": title}
        self._add({"line": "run", **told, "result": asdict(result)})

    def add_figures(self, scenario: str, title: str, way: str, figures: Figures) -> None:
        self._add({"line": "figures", "scenario": scenario, "title": title, "way": way, "figures": dict(figures)})

    def add_conditions(self, lines: str) -> None:
        self._add({"line": "conditions", "told": lines})

    def add_wrong(self, told: str) -> None:
        self._add({"line": "wrong", "told": told})

    def _add(self, line: dict[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a") as kept:
                kept.write(json.dumps(line) + "\n")
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        match line["line"]:
            case "run":
                given = dict(line["case"])
                given.update(kind=Kind(given["kind"]), contenders=tuple(given["contenders"]))
                measured = Case(**given)
                _, runs = self.runs.setdefault(measured.name, (measured, {}))
                runs.setdefault(line["contender"], []).append(Result(**line["result"]))
                self.titles[line["contender"]] = line["title"]
            case "figures":
                _, ways = self.figures.setdefault(line["scenario"], (line["title"], {}))
                ways.setdefault(line["way"], []).append(line["figures"])
            case "conditions":
                self.conditions.append(line["told"])
            case "wrong":
                self.wrong.append(line["told"])
