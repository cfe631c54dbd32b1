"""The cleaning of orphans over the processors that the settings define; the check, the job and the command share it.

Invariants:
    - This module loads no Dagster, so the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.processors.lifecycle.orphans.cleaning import OrphanCleaning
from holdfast.processors.lifecycle.orphans.owned import Defined
from holdfast.processors.lifecycle.ports import now_utc
from holdfast.processors.registration import ProcessorDefinition, load_processors


def open_cleaning(
    settings: Settings, registry: Registry, topics: Topics, who: str, clock: Callable[[], datetime] = now_utc
) -> OrphanCleaning:
    """The cleaning of this installation's orphans; ``who`` is recorded with each deletion."""
    return OrphanCleaning(settings, registry, topics, who, partial(_defined, settings), clock)


def _defined(settings: Settings) -> Defined:
    loaded = load_processors(settings)
    usable = [each for each in loaded if isinstance(each, ProcessorDefinition)]
    roots = (each.application.state_dir for each in usable)
    return Defined(
        tuple(each.topology for each in usable),
        frozenset(root for root in roots if root is not None),
        doubtful=len(usable) < len(loaded),
    )
