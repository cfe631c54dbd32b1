"""Which processors there are: the settings name them, this imports them, and one that fails hides no other."""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.settings import Settings
from holdfast.processors.application import Application
from holdfast.processors.engine.topology import Topology
from holdfast.processors.name_conflicts import name_conflicts


class ProcessorUnknown(HoldfastError):
    """No definition has this name."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class ProcessorDefinition:
    """A processor that can be run; ``target`` is where it is defined, as module:attribute."""

    name: str
    application: Application
    topology: Topology
    description: str
    owners: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class BrokenDefinition:
    """A processor that can't be imported or used, and why."""

    target: str
    error: str

    @property
    def sentence(self) -> str:
        """What happened where, without the way there."""
        places = re.findall(r'File "([^"]+)", line (\d+)', self.error)
        where = f"{places[-1][0]}, line {places[-1][1]}: " if places else ""
        said = self.error.strip().splitlines()[-1].rstrip(".")
        return f"{self.target} can't be {'imported' if places else 'used'}: {where}{said}"


def load_processors(settings: Settings) -> tuple[ProcessorDefinition | BrokenDefinition, ...]:
    """Import every processor that the settings name.

    One whose names are in the way of one before it can't be used, and counts as broken.
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
        ProcessorUnknown: There is none, or it may be one that can't be imported.
    """
    loaded: Sequence[ProcessorDefinition | BrokenDefinition] = load_processors(settings)
    for definition in loaded:
        if isinstance(definition, ProcessorDefinition) and definition.name == name:
            return definition
    known = [definition.name for definition in loaded if isinstance(definition, ProcessorDefinition)]
    broken = [definition for definition in loaded if isinstance(definition, BrokenDefinition)]
    hint = "".join(f" {item.sentence}." for item in broken)
    raise ProcessorUnknown(
        f"There is no processor named {name!r}; there are {', '.join(known) or 'none'}.{hint}",
        action="Correct that mistake."
        if broken
        else "Correct the name, or add its module:attribute to HOLDFAST_PROCESSORS.",
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
