"""Keeps the constants of the product's modules as they are, so that no test changes them for the tests after it.

Some definitions of processors set a constant of the engine, for example to delete records after 0.3 seconds. They are
meant for worker processes. If such a definition runs in the test process, all later tests would run with its constants.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

Plain = int | float | str | None


class Constants:
    """The constants with plain values of all modules of ``holdfast``, as they were when this object first saw them."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Plain] = {}
        self.look()

    def look(self) -> list[str]:
        """Restore each constant that has changed, and describe each change. Constants of new modules are added."""
        changes = []
        for module in _modules():
            for name, value in list(vars(module).items()):
                if not name.isupper() or not (value is None or isinstance(value, int | float | str)):
                    continue
                first = self._first.setdefault((module.__name__, name), value)
                if value != first:
                    changes.append(f"{module.__name__}.{name} was {first!r} and is {value!r}")
                    setattr(module, name, first)
        return changes


@contextmanager
def kept() -> Iterator[None]:
    """Restore the constants at the end of the block."""
    import_module("holdfast.processors.engine.runtime.loop")  # imports the whole engine, so that `Constants` sees it
    constants = Constants()
    try:
        yield
    finally:
        constants.look()


def build_of(definition: str) -> Callable[..., Any]:
    """Run the source text of a processor's definition, and return its function ``build``. Constants stay unchanged."""
    names: dict[str, Any] = {}
    with kept():
        exec(definition, names)
    build: Callable[..., Any] = names["build"]
    return build


def _modules() -> list[ModuleType]:
    return [each for name, each in list(sys.modules.items()) if name.startswith("holdfast.") and each is not None]
