"""What a modelled life does in less time than the product, with the same outcome: thousands of lives are run.

py4j asks the JVM for each name in it at each use, and the JVM then looks through all jars for names that none has. The
answers do not change while a JVM runs, so they are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView


def keep_names(patch: pytest.MonkeyPatch) -> None:
    """Keep what py4j was told about classes, packages and static methods."""
    for kind in (JVMView, JavaPackage, JavaClass):
        patch.setattr(kind, "__getattr__", _kept(kind.__getattr__))


def _kept(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def answer(self: Any, name: str) -> Any:
        found = ask(self, name)
        if isinstance(found, JavaClass | JavaPackage | JavaMember):
            self.__dict__[name] = found
        return found

    return answer
