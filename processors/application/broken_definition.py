"""Describes definitions of processors that can't be imported or used.

A description names the line of the user's code that caused the fault, and the edit that repairs it.

Invariants:
    - ``Application.run`` is refused during an import. Otherwise `holdfast status`, a deployment or Dagster would start
      a worker and wait until the worker ends.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.installation import IMPORT_ROOT

#: Number of innermost stack frames of a failed import that are kept in the traceback.
_FRAMES = 8

_importing: ContextVar[bool] = ContextVar("importing a definition", default=False)


class RunWhileImported(BadConfiguration):
    """A module calls ``run`` of its application at its top level, so that an import would start a worker."""


@contextmanager
def importing() -> Iterator[None]:
    """Context manager for an import of a definition: ``Application.run`` raises RunWhileImported inside the block."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_while_imported() -> None:
    """Raises ``RunWhileImported`` if a definition is being imported."""
    if _importing.get():
        raise RunWhileImported(
            "The module runs its application when it is imported; expected a declaration only, because commands and "
            "Dagster import it, too.",
            action='Write `if __name__ == "__main__":` before `app.run()`, at the end of the module.',
        )


@dataclass(frozen=True, slots=True)
class BrokenDefinition:
    """A processor that can't be imported or used.

    Attributes:
        target: The processor as the settings name it: a module, or ``module:attribute``.
        error: The traceback, or the fault in one sentence.
        reason: If given, replaces the last line of the traceback in ``sentence``.
        mend: The edit that repairs the definition; empty if only the user can know it.
        placed: Whether a line of the user's code caused the fault.
    """

    target: str
    error: str
    reason: str = ""
    mend: str = ""
    placed: bool = True

    @property
    def sentence(self) -> str:
        """The error, and the line of the user's code that led to it, without the traceback."""
        places = re.findall(r'File "([^"<]+)", line (\d+)', self.error)
        # If Holdfast or a library refuses an argument, the user's line is the last traceback line outside of both.
        own = [place for place in places if not _is_library(place[0])] or places
        where = f"{own[-1][0]}, line {own[-1][1]}: " if own and self.placed else ""
        return f"{self.target} can't be {'imported' if places else 'used'}: {where}{self.fault}"

    @property
    def fault(self) -> str:
        """Returns the fault as text without the code line: ``reason``, or the last line of the traceback.

        The text has no full stop.
        """
        lines = self.error.strip().splitlines() or ["no reason was given"]
        return (self.reason or lines[-1]).rstrip(".")

    @property
    def action(self) -> str:
        """The edit that repairs the definition."""
        return self.mend or f"Correct {self.target} or the setting `processors`, then reload the definitions."


def broken_by(target: str, failure: BaseException) -> BrokenDefinition:
    """Returns the description of a target whose import or declaration raised ``failure``."""
    error = "".join(traceback.format_exception(failure, limit=-_FRAMES))
    module, _, attribute = target.partition(":")
    if _is_path(module):
        reason, mend = f"it is a path, expected a module: {_as_module(module)}", _named(_as_module(module))
        return BrokenDefinition(target, error, reason, mend, placed=False)
    if isinstance(failure, ModuleNotFoundError) and failure.name and f"{module}.".startswith(f"{failure.name}."):
        near = _nearest_module(failure.name)
        reason = f"there is no module {failure.name}" + (f"; the nearest is {near}" if near else "")
        return BrokenDefinition(target, error, reason, _named(near or "my_project.processors"), placed=False)
    if isinstance(failure, AttributeError) and failure.obj is sys.modules.get(module) and failure.name == attribute:
        return BrokenDefinition(target, error, f"{module} has no {attribute}", _named(module), placed=False)
    if isinstance(failure, HoldfastError):
        return BrokenDefinition(target, error, f"{type(failure).__name__}: {failure.message}", failure.action)
    return BrokenDefinition(target, error)


def _named(module: str) -> str:
    return f"Name a module of the project, as in `{module}`, or one Application in it, as in `{module}:app`."


def _is_path(module: str) -> bool:
    return "/" in module or module.endswith(".py")


def _as_module(path: str) -> str:
    """Converts a path below the project's folder to a module name: ``./shop/processors.py`` to ``shop.processors``."""
    return ".".join(part for part in Path(path.removesuffix(".py")).parts if part not in (".", "..", "/"))


def _nearest_module(missing: str) -> str | None:
    """Returns the module with the most similar name, in the missing module's package or in the project's folders."""
    package, _, name = missing.rpartition(".")
    try:
        folders = list(importlib.import_module(package).__path__) if package else _own_folders()
    except Exception:
        return None
    names = {each.stem for folder in folders for each in Path(folder).glob("*.py")}
    names |= {each.parent.name for folder in folders for each in Path(folder).glob("*/*.py")}
    near = difflib.get_close_matches(name, sorted(names), 1)
    return f"{package}.{near[0]}".removeprefix(".") if near else None


def _own_folders() -> list[str]:
    """Returns the folders of the import path, except those of Python and of installed packages."""
    return [folder for folder in sys.path if not _is_library(folder or ".")]


def _is_library(file: str) -> bool:
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [IMPORT_ROOT / "holdfast", *(Path(each) for each in installed if each)]
    return any(Path(file).is_relative_to(folder) for folder in folders)
