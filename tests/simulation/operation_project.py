"""The project in a course (a simulated sequence of commands and faults): two modules that define the processor.

Workers import these modules, so the versions that they have imported can be checked.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from holdfast.processors.lifecycle.deploy.code_files import Code, code_of

#: The module of the definition, and the module that it imports.
APP, RATES = "course_app", "course_rates"


@dataclass(frozen=True, slots=True)
class Imported:
    """The version of each of the two modules, as a worker has imported them.

    ``rates`` also has a revision (an edit of the code that keeps the version): `v1.2` is revision 2 of version `v1`.
    """

    app: str
    rates: str

    @property
    def is_torn(self) -> bool:
        """Whether the two modules have different versions."""
        return self.rates.partition(".")[0] != self.app


class Project:
    """The folder of the definition, which is edited while workers run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def define(self, version: str, revision: int) -> None:
        """Writes the files of the two modules ``APP`` and ``RATES``.

        ``APP`` contains ``version``. ``RATES`` contains ``version`` and ``revision`` (the number of an edit of the code
        that keeps the version). So an edit that keeps the version changes only ``RATES``.
        """
        app = f"import {RATES}\n\nVERSION = {version!r}\napplication = {RATES}.VERSION, VERSION\n"
        (self.folder / f"{APP}.py").write_text(app)
        (self.folder / f"{RATES}.py").write_text(f"VERSION = '{version}.{revision}'\n")

    def code(self) -> Code:
        """The files of the definition, found as in production."""
        with patch.object(sys, "path", [str(self.folder), *sys.path]):
            try:
                return code_of(f"{APP}:application")
            finally:
                sys.path_importer_cache.pop(str(self.folder), None)

    def imported(self, release: Path | None) -> Imported:
        """The versions that Python imports now.

        A module comes from the release if the release has a copy of it, else from the project.
        """
        path = [self.folder] if release is None else [release, self.folder]
        first = {name: next(each for each in path if (each / f"{name}.py").is_file()) for name in (APP, RATES)}
        return Imported(*(_version_of(folder / f"{name}.py") for name, folder in first.items()))


def _version_of(module: Path) -> str:
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERSION":
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"{module} names no version")
