"""Lists the contenders, and builds a separate environment for Quix Streams and the Java classes for Kafka Streams.

Both are made once in the cache folder. Their names contain a hash of the files that define them.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.infra.setup.jars import JarSource, fetch_jars
from holdfast.infra.setup.java import Java
from tests.bench.contenders import Work

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
STREAMS = HERE / "kafka_streams"
REQUIREMENTS = HERE / "quix-requirements.txt"
JAVA_HEAP_MB = 2_048
INSTALL_WITHIN_S = 900.0


class NotHere(Exception):
    """A contender can't run on this machine; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One contender: the command before the arguments of the work, and its name in tables."""

    name: str
    title: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def call(self, work: Work) -> list[str]:
        return [*self.command, *work.arguments()]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where contenders are built: the cache folder, Java, and the source of jars."""

    cache: Path
    java: Java
    jars: JarSource


def module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"tests.bench.{name}")


#: Checkpoints are off, because the peers have none. tests.bench.checkpoint measures checkpoints.
OURS = {"PYTHONPATH": str(PROJECT), "HOLDFAST_CHECKPOINTS__ENABLED": "false"}


def floor(_: Machine) -> Contender:
    return Contender("floor", "raw client", module("floor"), {"PYTHONPATH": str(PROJECT)})


def ours(_: Machine) -> Contender:
    return Contender("ours", "ours, function", module("ours"), OURS)


def ours_builtin(_: Machine) -> Contender:
    return Contender("ours-builtin", "ours, built-in", module("ours_builtin"), OURS)


def quix(machine: Machine) -> Contender:
    python = quix_python(machine.cache)
    return Contender("quix", f"Quix Streams {_pinned('quixstreams')}", (str(python), str(HERE / "quix.py")))


def streams(machine: Machine) -> Contender:
    try:
        jars = fetch_jars("streams", machine.cache, machine.jars, lock=STREAMS / "jars.lock")
    except HoldfastError as failure:
        raise NotHere(failure.message) from failure
    classes = _compiled(machine.cache / "bench", machine.java, jars)
    kafka = next(jar.stem.rpartition("-")[2] for jar in jars if jar.name.startswith("kafka-streams-"))
    command = (
        str(machine.java.executable),
        f"-Xmx{JAVA_HEAP_MB}m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp",
        ":".join(str(path) for path in (classes, *jars)),
        "RunningTotal",
    )
    return Contender("streams", f"Kafka Streams {kafka}", command)


CONTENDERS: Mapping[str, Callable[[Machine], Contender]] = {
    "floor": floor,
    "ours": ours,
    "ours-builtin": ours_builtin,
    "quix": quix,
    "streams": streams,
}


def versions() -> str:
    """The library versions of the Python contenders."""
    ours_of = ", ".join(f"{name} {version(name)}" for name in ("confluent-kafka", "rocksdict", "msgspec"))
    theirs = ", ".join(f"{name} {_pinned(name)}" for name in ("confluent-kafka", "rocksdict"))
    return f"{ours_of}; Quix Streams with {theirs}"


def _pinned(name: str) -> str:
    lines = REQUIREMENTS.read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{name}=="))


def quix_python(cache: Path) -> Path:
    """Return the path of a Python interpreter in an environment with exactly the pinned packages.

    Raises:
        NotHere: The packages can't be installed.
    """
    folder = cache / "bench"
    mark = _digest(REQUIREMENTS.read_bytes(), sys.version.encode())
    home = folder / f"quix-{_pinned('quixstreams')}-{mark}"
    python = home / "bin" / "python"
    with _made_once(home) as missing:
        if missing:
            print(f"Installing Quix Streams {_pinned('quixstreams')} into its own environment.", flush=True)
            _run([sys.executable, "-m", "venv", str(home)], "make an environment")
            install = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(REQUIREMENTS)]
            _run(install, "install its packages")
    return python


def _compiled(folder: Path, java: Java, jars: tuple[Path, ...]) -> Path:
    sources = sorted(STREAMS.glob("*.java"))
    compiler = java.home / "bin" / "javac"
    found = str(compiler) if compiler.exists() else shutil.which("javac")
    if found is None:
        raise NotHere("there is no JDK that could compile it, only a Java runtime")
    mark = _digest(*(source.read_bytes() for source in sources), (STREAMS / "jars.lock").read_bytes())
    classes = folder / f"streams-{mark}"
    with _made_once(classes) as missing:
        if missing:
            class_path = ":".join(str(jar) for jar in jars)
            command = [found, "--release", "17", "-cp", class_path, "-d", str(classes), *map(str, sources)]
            _run(command, "compile its program")
    return classes


@contextmanager
def _made_once(home: Path) -> Iterator[bool]:
    """Yield whether the folder is still missing, so that the block must build it.

    The folder is kept only if the block succeeds. A lock admits one process at a time.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    done = home / ".complete"
    with (home.parent / f".{home.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = not done.exists()
        if missing:
            shutil.rmtree(home, ignore_errors=True)
        yield missing
        if missing:
            done.touch()


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=INSTALL_WITHIN_S, check=False
    )
    if done.returncode != 0:
        raise NotHere(f"could not {what}: {(done.stdout + done.stderr).strip()[-400:]}")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
