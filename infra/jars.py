"""The Java libraries that the broker and Spark need: named in ``jars.lock``, fetched once, checked always.

They are resolved by coordinate through the command line of Ivy, which ships inside pyspark: no registry is named
here, and no build tool is needed. Every jar is listed; nothing is resolved transitively.

Invariants:
    - A path is handed out only after its bytes had the size and the sha256 of the lock.
    - A jar with other bytes is deleted, never kept beside a warning.
    - Two processes that fetch at the same time fetch one after the other; the second finds the first one's jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.java import BRIEF, Java

#: The lock of this checkout.
LOCK = Path(__file__).resolve().parent.parent / "jars.lock"
#: A fetch that takes longer has failed.
FETCH_WITHIN_S = 900.0
# Every jar is checked against the lock, so neither POMs nor checksum files are asked for: one request for each jar
# instead of five. With no root, Ivy's resolver reads the public Maven registry.
_IVY_SETTINGS = (
    '<ivysettings><property name="ivy.checksums" value=""/><settings defaultResolver="public"/><resolvers>'
    '<ibiblio name="public" m2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers></ivysettings>'
)
# Trust stores that systems keep for Java, for a Java that brings only public certificates of its own.
_SYSTEM_TRUST_STORES = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))
#: An error's message names so many jars; its fields name all.
_NAMED = 5
_UNRESOLVED = re.compile(r":: (\S+?)#(\S+?);(\S+?): ")
_ADDRESS = re.compile(r"\w+://\S+")


class JarLockInvalid(HoldfastError):
    """A line of jars.lock can't be read."""

    exit_code = EXIT_BAD_CONFIGURATION


class JarUnavailable(HoldfastError):
    """A jar could not be fetched; the field ``coordinates`` names each."""

    exit_code = EXIT_BAD_CONFIGURATION


class JarChecksumMismatch(HoldfastError):
    """A fetched jar has other bytes than the lock says; it was deleted."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class JarPin:
    """One line of the lock: a jar of a set, its coordinate ``group:artifact:version``, its sha256 and size."""

    set_name: str
    coordinate: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """The jar's file name in its set's folder."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


@dataclass(frozen=True, slots=True)
class JarSource:
    """How jars are fetched: the Java that runs Ivy, and Ivy settings of the team's own mirror, if it has one."""

    java: Java
    ivy_settings: Path | None = None


def read_lock(set_name: str, lock: Path = LOCK) -> tuple[JarPin, ...]:
    """The jars of one set, in the lock's order.

    Raises:
        JarLockInvalid: A line is not ``set coordinate sha256 bytes``, or the set has no line.
    """
    pins: list[JarPin] = []
    for number, line in enumerate(lock.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match line.split():
            case [name, coordinate, sha256, size] if (
                coordinate.count(":") == 2 and re.fullmatch("[0-9a-f]{64}", sha256) and size.isdigit()
            ):
                pins.append(JarPin(name, coordinate, sha256, int(size)))
            case _:
                raise JarLockInvalid(
                    f"Line {number} of {lock} is {line!r}; expected `set coordinate sha256 bytes`.",
                    action="Take the file from version control again.",
                    path=str(lock),
                    line=number,
                )
    chosen = tuple(pin for pin in pins if pin.set_name == set_name)
    if not chosen:
        raise JarLockInvalid(
            f"{lock} has no jar in the set {set_name!r}; it has {sorted({pin.set_name for pin in pins})}.",
            action="Take the file from version control again.",
            path=str(lock),
        )
    return chosen


def fetch_jars(
    set_name: str,
    cache: Path,
    source: JarSource,
    *,
    lock: Path = LOCK,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Path, ...]:
    """The verified jars of one set; those that the cache lacks, or holds with other bytes, are fetched.

    Args:
        set_name: ``broker``, ``spark``, or ``s3`` (what Spark needs beside for tables in an object store).
        cache: The cache folder; the jars lie in ``jars/<set>`` below it.
        source: How to fetch.
        lock: The lock file.
        say: Told, in one line each, what is being done.

    Raises:
        JarUnavailable: Some could not be fetched.
        JarChecksumMismatch: A fetched jar differs from the lock.
    """
    pins = read_lock(set_name, lock)
    folder = cache / "jars" / set_name
    folder.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder / ".lock"):
        seen = _Verified(folder)
        missing = [pin for pin in pins if not seen.holds(pin)]
        if missing:
            say(f"Fetching {len(missing)} of {len(pins)} jars of the set {set_name} ({_mebibytes(missing)} MiB).")
            # A folder for each set: two sets may be fetched at once.
            _fetch(missing, folder, cache / "ivy" / set_name, source)
            for pin in missing:
                seen.check(pin)
        seen.save(pins)
    return tuple(folder / pin.file_name for pin in pins)


class _Verified:
    """Which files of a folder had the right bytes when they had this size and time of change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record = folder / ".verified.json"
        try:
            self._known: dict[str, list[object]] = json.loads(self._record.read_text())
        except (OSError, ValueError):
            self._known = {}

    def holds(self, pin: JarPin) -> bool:
        path = self._folder / pin.file_name
        if not path.exists() or path.stat().st_size != pin.size_bytes:
            return False
        if self._known.get(pin.file_name) == self._facts(pin):
            return True
        return _sha256(path) == pin.sha256

    def check(self, pin: JarPin) -> None:
        path = self._folder / pin.file_name
        size, seen = path.stat().st_size, _sha256(path)
        if (size, seen) == (pin.size_bytes, pin.sha256):
            return
        path.unlink()
        raise JarChecksumMismatch(
            f"The jar {pin.coordinate} was fetched with sha256 {seen} ({size} bytes); "
            f"expected {pin.sha256} ({pin.size_bytes} bytes). It was deleted.",
            action="Fetch again with `make setup`; if it happens again, find out what your registry or mirror serves.",
            coordinate=pin.coordinate,
            seen=seen,
            expected=pin.sha256,
        )

    def save(self, pins: Sequence[JarPin]) -> None:
        facts = {pin.file_name: self._facts(pin) for pin in pins}
        if facts == {name: self._known.get(name) for name in facts}:
            return
        fresh = self._record.with_name(f".verified.{os.getpid()}")
        fresh.write_text(json.dumps({**self._known, **facts}, indent=1))
        fresh.replace(self._record)

    def _facts(self, pin: JarPin) -> list[object]:
        status = (self._folder / pin.file_name).stat()
        return [status.st_size, status.st_mtime_ns, pin.sha256]


def _fetch(pins: Sequence[JarPin], folder: Path, ivy_cache: Path, source: JarSource) -> None:
    ivy_cache.mkdir(parents=True, exist_ok=True)
    wanted = ivy_cache / f"wanted-{os.getpid()}.xml"
    wanted.write_text(_ivy_file(pins))
    settings = ivy_cache / f"settings-{os.getpid()}.xml"
    settings.write_text(_IVY_SETTINGS)
    command = [str(source.java.executable), BRIEF, *_trust(source.java), "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    command += ["-settings", str(source.ivy_settings or settings)]
    command += ["-cache", str(ivy_cache), "-ivy", str(wanted), "-types", "jar", "bundle"]
    command += ["-retrieve", str(folder / "[artifact]-[revision].[ext]"), "-overwriteMode", "always"]
    for pin in pins:
        (folder / pin.file_name).unlink(missing_ok=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=FETCH_WITHIN_S, check=False
        )
        told = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        told = f"no end after {FETCH_WITHIN_S:.0f} s"
    finally:
        wanted.unlink(missing_ok=True)
        settings.unlink(missing_ok=True)
    absent = [pin.coordinate for pin in pins if not (folder / pin.file_name).exists()]
    if absent:
        # Ivy copies nothing when one is missing; what it downloaded stays in its cache for the next try.
        unresolved = {":".join(match) for match in _UNRESOLVED.findall(told)}
        raise _unavailable([name for name in absent if name in unresolved] or absent, told)
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _unavailable(coordinates: Sequence[str], told: str) -> JarUnavailable:
    reason = _reason(told)
    if re.search("PKIX|SSLHandshake|trustAnchors", told):
        action = (
            "Java does not trust the certificate that it was shown, as behind a proxy with its own authority: "
            "name a trust store that holds it, JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=<file>, "
            "and run `make setup` again."
        )
    else:
        action = (
            "Check that this machine reaches a Maven registry, then run `make setup` again; a mirror of your own is "
            "named by HOLDFAST_IVY_SETTINGS, the path of an Ivy settings file."
        )
    shown = ", ".join(coordinates[:_NAMED]) + (f" and {len(coordinates) - _NAMED} more" * (len(coordinates) > _NAMED))
    return JarUnavailable(
        f"Could not fetch {len(coordinates)} jar(s): {shown}. Ivy said: {reason}.",
        action=action,
        coordinates=", ".join(coordinates),
        reason=reason,
    )


def _reason(told: str) -> str:
    """The telling lines of Ivy's output, without addresses: causes first, then what they led to."""
    lines = [_ADDRESS.sub("<address>", line.strip(" :\t!\n")) for line in told.splitlines()]
    causes = [line for line in lines if re.search(r"PKIX|xception|refused|denied|timed out|rror|no end after", line)]
    results = [line for line in lines if "not found" in line and line not in causes]
    telling = list(dict.fromkeys(causes))[:3] or list(dict.fromkeys(results))[:3]
    return " | ".join(line[:300] for line in telling) or " ".join(lines)[-300:]


def _ivy_file(pins: Sequence[JarPin]) -> str:
    lines = []
    for pin in pins:
        group, artifact, version = pin.coordinate.split(":")
        lines.append(
            f'<dependency org="{group}" name="{artifact}" rev="{version}" transitive="false" force="true" '
            'conf="default->default"/>'
        )
    return (
        '<ivy-module version="2.0"><info organisation="holdfast" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{"".join(lines)}</dependencies>'
        "</ivy-module>"
    )


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise JarUnavailable(
            "Ivy is not here: pyspark, which ships it, is not installed in this environment.",
            action="Run `make setup`.",
            coordinates="",
        )
    return jars[-1]


def _trust(java: Java) -> list[str]:
    """The system's trust store for a Java that has none of the system's, unless the user named one."""
    told = os.environ.get("JAVA_TOOL_OPTIONS", "")  # tidy: allow-environment because it is Java's own setting
    if "trustStore" in told or (java.home / "lib/security/cacerts").is_symlink():
        return []
    store = next((store for store in _SYSTEM_TRUST_STORES if store.exists()), None)
    return [f"-Djavax.net.ssl.trustStore={store}"] if store else []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mebibytes(pins: Sequence[JarPin]) -> int:
    return round(sum(pin.size_bytes for pin in pins) / 2**20)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
