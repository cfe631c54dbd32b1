"""Refuses to start a worker while a module with definitions of processors is being imported.

Invariants:
    - ``Application.run`` is refused during an import. Otherwise `holdfast status`, a deployment or Dagster would start
      a worker and wait until the worker ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.infra.errors import BadConfiguration

_importing: ContextVar[bool] = ContextVar("importing a definition", default=False)


class RunWhileImported(BadConfiguration):
    """A module calls ``run`` of its application at its top level, so that an import would start a worker."""


@contextmanager
def importing() -> Iterator[None]:
    """Marks the block as the import of a definition, so that ``Application.run`` is refused inside it."""
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
