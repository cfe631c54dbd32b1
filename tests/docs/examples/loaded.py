"""Loads the files of ``docs/examples``."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

from tests.docs.pages import PROJECT

EXAMPLES = PROJECT / "docs" / "examples"


@cache
def example(name: str) -> ModuleType:
    """Returns the module of a file. The file is not run as a program."""
    found = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made
