"""Imports the processors that the settings name. If one definition can't be imported, the others are still loaded.

A target in the settings is ``module:attribute``, or ``module`` for every Application at the top level of the module.
Modules of a project are imported from the project's folder.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeGuard

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import Settings
from holdfast.processors.application.application import Application
from holdfast.processors.application.broken_definition import BrokenDefinition, broken_by, importing
from holdfast.processors.application.name_conflicts import NameConflict, name_conflicts
from holdfast.processors.engine.topology import Topology


class ProcessorUnknown(HoldfastError):
    """No processor has this name. Definitions that can't be imported are not searched."""

    exit_code = EXIT_BAD_CONFIGURATION


class ProcessorBroken(HoldfastError):
    """A definition can't be imported or used. The field ``target`` names it, for example ``shop.orders:app``."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class ProcessorDefinition:
    """A processor that was imported without an error.

    ``target`` names it in the code, as ``module:attribute``, for example ``shop.orders:app``.
    """

    name: str
    application: Application
    topology: Topology
    description: str
    owners: tuple[str, ...]
    target: str


def load_processors(settings: Settings) -> tuple[ProcessorDefinition | BrokenDefinition, ...]:
    """Imports and returns all processors of the settings.

    If names of a processor conflict with names of an earlier processor, its entry in the result is a
    ``BrokenDefinition``.
    """
    import_from_project(settings)
    loaded: list[ProcessorDefinition | BrokenDefinition] = []
    for found in (each for target in settings.processors for each in _load(target)):
        others = [each.topology for each in loaded if isinstance(each, ProcessorDefinition)]
        conflicts = name_conflicts(found.topology, others) if isinstance(found, ProcessorDefinition) else ()
        loaded.append(_in_the_way(found, loaded, conflicts) if conflicts else found)
    return tuple(loaded)


def load_processor(settings: Settings, target: str) -> ProcessorDefinition:
    """Imports and returns the only processor of a target. The target need not be in the settings.

    Raises:
        ProcessorBroken: The processor can't be imported or used; the error has file and line.
        ProcessorUnknown: The module has several processors; the error lists their targets.
    """
    import_from_project(settings)
    found = _load(target)
    if len(found) > 1:
        raise ProcessorUnknown(
            f"Module {target} has {len(found)} processors: {', '.join(each.target for each in found)}.",
            action="Name one of them.",
            name=target,
        )
    (one,) = found
    if isinstance(one, BrokenDefinition):
        raise ProcessorBroken(
            f"{one.sentence}.",
            action=one.mend
            or "Correct that line, or name the processor as `module:attribute`, as in `my_project.processors:app`.",
            target=one.target,
        )
    conflicts = name_conflicts(one.topology)
    if conflicts:
        raise ProcessorBroken(conflicts[0].sentence, action=conflicts[0].action, target=one.target)
    return one


def import_from_project(settings: Settings) -> None:
    """Makes modules in the project's folder importable in this process."""
    if settings.project is not None and str(settings.project) not in sys.path:
        sys.path.insert(0, str(settings.project))


def find_processor(settings: Settings, name: str) -> ProcessorDefinition:
    """Returns the definition with this name.

    Raises:
        ProcessorUnknown: No definition has this name, or its definition can't be imported.
    """
    loaded = load_processors(settings)
    known = {definition.name: definition for definition in loaded if isinstance(definition, ProcessorDefinition)}
    if name in known:
        return known[name]
    broken = [definition for definition in loaded if isinstance(definition, BrokenDefinition)]
    hint = "".join(f" {item.sentence}." for item in broken)
    raise ProcessorUnknown(
        f"There is no processor named {name!r}; there are {', '.join(known) or 'none'}.{hint}",
        action="Correct the code of the definition that is named here, then try again."
        if broken
        else "Correct the name, or add the processor's module to `processors` in `holdfast.toml`, or to "
        "`HOLDFAST_PROCESSORS`.",
        name=name,
    )


def _in_the_way(
    found: ProcessorDefinition | BrokenDefinition,
    loaded: Sequence[ProcessorDefinition | BrokenDefinition],
    conflicts: Sequence[NameConflict],
) -> BrokenDefinition:
    """Returns the ``BrokenDefinition`` that replaces a definition whose names conflict with an earlier definition."""
    reasons = [conflict.text for conflict in conflicts]
    if isinstance(found, ProcessorDefinition):
        both = (each for each in loaded if isinstance(each, ProcessorDefinition) and each.name == found.name)
        reasons += [f"The other one is {each.target}." for each in both]
    return BrokenDefinition(found.target, " ".join(reasons))


def _load(target: str) -> tuple[ProcessorDefinition | BrokenDefinition, ...]:
    module, _, attribute = target.partition(":")
    try:
        with importing():
            imported = importlib.import_module(module)
        named = {attribute: getattr(imported, attribute)} if attribute else _applications(imported)
        if not named:
            return (BrokenDefinition(target, f"{module} has no Application at its top level"),)
        spoken = _first_paragraph(imported.__doc__) if len(_applications(imported)) == 1 else ""
        return tuple(_defined(f"{module}:{name}", application, spoken) for name, application in named.items())
    except (Exception, SystemExit) as failure:
        return (broken_by(target, failure),)


def _applications(module: ModuleType) -> dict[str, Application]:
    """Returns the applications at the top level of a module by name, in the order of their definition."""
    found = {id(value): (name, value) for name, value in reversed(vars(module).items()) if _is_application(value)}
    return dict(reversed(found.values()))


def _is_application(value: object) -> TypeGuard[Application]:
    return isinstance(value, Application)


def _first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring in one line; empty without a docstring."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


def _defined(target: str, application: object, spoken: str) -> ProcessorDefinition | BrokenDefinition:
    """Returns the definition of an application; a ``BrokenDefinition`` if ``application`` is not an ``Application``.

    ``spoken`` is the default for an empty ``description``. It is the module's docstring if the module has only one
    processor, otherwise an empty text.
    """
    if not isinstance(application, Application):
        return BrokenDefinition(target, f"{target} is a {type(application).__name__}, expected an Application")
    topology = application.topology()
    said = application.description or spoken
    return ProcessorDefinition(application.consumer_group, application, topology, said, application.owners, target)
