"""Imports the processors that the settings name. A definition that fails to import does not hide the others."""

from __future__ import annotations

import importlib
import re
import traceback
from dataclasses import dataclass

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.settings import Settings
from holdfast.processors.application import Application
from holdfast.processors.engine.topology import Topology
from holdfast.processors.name_conflicts import name_conflicts


class ProcessorUnknown(HoldfastError):
    """No loaded definition has the requested name."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class ProcessorDefinition:
    """A processor that can run; ``target`` is its place in the code, as module:attribute."""

    name: str
    application: Application
    topology: Topology
    description: str
    owners: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class BrokenDefinition:
    """A processor that can't be imported or used; ``error`` is the traceback or the conflict."""

    target: str
    error: str

    @property
    def sentence(self) -> str:
        """The error and the line that raised it, without the traceback."""
        places = re.findall(r'File "([^"]+)", line (\d+)', self.error)
        where = f"{places[-1][0]}, line {places[-1][1]}: " if places else ""
        error = self.error.strip().splitlines()[-1].rstrip(".")
        return f"{self.target} can't be {'imported' if places else 'used'}: {where}{error}"

    @property
    def action(self) -> str:
        """The edit that repairs it."""
        return f"Correct {self.target} or the setting `HOLDFAST_PROCESSORS`, then reload the definitions."


def load_processors(settings: Settings) -> tuple[ProcessorDefinition | BrokenDefinition, ...]:
    """All processors of the settings, imported.

    A processor whose names conflict with an earlier one is a ``BrokenDefinition``.
    """
    loaded: list[ProcessorDefinition | BrokenDefinition] = []
    for target in settings.processors:
        found = _load(target)
        if isinstance(found, ProcessorDefinition):
            others = [each.topology for each in loaded if isinstance(each, ProcessorDefinition)]
            conflicts = name_conflicts(found.topology, others)
            if conflicts:
                found = BrokenDefinition(target, "\n".join(conflict.text for conflict in conflicts))
        loaded.append(found)
    return tuple(loaded)


def find_processor(settings: Settings, name: str) -> ProcessorDefinition:
    """The definition with this name.

    Raises:
        ProcessorUnknown: No definition has it, or its definition can't be imported.
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
        else "Correct the name, or add the processor's module:attribute to `HOLDFAST_PROCESSORS`.",
        name=name,
    )


def _load(target: str) -> ProcessorDefinition | BrokenDefinition:
    module, _, attribute = target.partition(":")
    try:
        application = getattr(importlib.import_module(module), attribute or "application")
        if not isinstance(application, Application):
            return BrokenDefinition(target, f"{target} is a {type(application).__name__}, expected an Application")
        topology = application.topology()
    except Exception:
        return BrokenDefinition(target, traceback.format_exc(limit=-3))
    return ProcessorDefinition(
        application.consumer_group, application, topology, application.description, application.owners, target
    )
