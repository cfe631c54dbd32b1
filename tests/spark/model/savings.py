"""Makes lives (random sequences of actions on a store) faster, because the tests run thousands of them.

The results of the actions do not change.

py4j asks the JVM for a Java name at each use, and the JVM searches all jars for names that do not exist. The answers do
not change while a JVM runs, so this module caches them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView


def keep_names(patch: pytest.MonkeyPatch) -> None:
    """Cache py4j's lookups of classes, packages and static methods."""
    for kind in (JVMView, JavaPackage, JavaClass):
        patch.setattr(kind, "__getattr__", _kept(kind.__getattr__))


def _kept(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def answer(self: Any, name: str) -> Any:
        found = ask(self, name)
        if isinstance(found, JavaClass | JavaPackage | JavaMember):
            self.__dict__[name] = found
        return found

    return answer
