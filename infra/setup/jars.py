"""Fetches and verifies the jars of the broker and of Spark, which are listed in ``jars.lock``.

Ivy, which is part of pyspark, downloads the jars. ``jars.lock`` lists every jar, so Ivy need not resolve dependencies.

Invariants:
    - ``fetch_jars`` returns a path only if the file has the size and the sha256 in ``jars.lock``.
    - A jar with another sha256 is deleted.
    - A file lock serialises fetches, so a second process finds the jars of the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.installation import IMPORT_ROOT, RESTORE, SET_UP, extra_missing
from holdfast.infra.setup.java import BRIEF, Java
from holdfast.infra.system.files import locked, package_folder, replace_text
from holdfast.infra.system.process import completed

#: Path of ``jars.lock``, which is part of the package.
LOCK = IMPORT_ROOT / "holdfast" / "jars.lock"
#: Timeout of one fetch of all missing jars of a set, seconds.
FETCH_WITHIN_S = 900.0
# POM and checksum files are not requested, because every jar is checked against jars.lock. That saves four of five
# requests. A resolver without the attribute `root` uses the public Maven registry.
_IVY_SETTINGS = (
    '<ivysettings><property name="ivy.checksums" value=""/><settings defaultResolver="public"/><resolvers>'
    '<ibiblio name="public" m2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers></ivysettings>'
)
# Trust stores of operating systems. They may have a company's certificates, which Java's own trust store lacks.
_SYSTEM_TRUST_STORES = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))
#: Maximum number of jars that an error's message names; the error's fields name all jars.
_NAMED = 5
_UNRESOLVED = re.compile(r":: (\S+?)#(\S+?);(\S+?): ")
_ADDRESS = re.compile(r"\w+://\S+")


class JarLockInvalid(HoldfastError):
    """``jars.lock`` has a malformed line, or has no jar for the requested set."""

    exit_code = EXIT_BAD_CONFIGURATION


class JarUnavailable(HoldfastError):
    """Jars could not be fetched; the field ``coordinates`` names them."""

    exit_code = EXIT_BAD_CONFIGURATION


class JarChecksumMismatch(HoldfastError):
    """A fetched jar does not have the sha256 and size in ``jars.lock``, so it was deleted."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class JarPin:
    """One line of the lock: the set, and the coordinate, sha256 and size of a jar.

    The coordinate is ``group:artifact:version``, or ``group:artifact:version:extension:classifier`` for an archive.
    """

    set_name: str
    coordinate: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """The jar's file name in the folder of its set."""
        _, artifact, version, extension, classifier = self.parts
        return f"{artifact}-{version}{classifier and f'-{classifier}'}.{extension}"

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        """Group, artifact, version, extension, and the classifier, which is empty for a jar."""
        group, artifact, version, *further = self.coordinate.split(":")
        extension, classifier = further or ("jar", "")
        return group, artifact, version, extension, classifier


@dataclass(frozen=True, slots=True)
class JarSource:
    """The Java that runs Ivy, and Ivy's settings file that names a mirror (None: the public registry)."""

    java: Java
    ivy_settings: Path | None = None


def read_lock(set_name: str, lock: Path = LOCK) -> tuple[JarPin, ...]:
    """The jars of one set, in the order of ``jars.lock``.

    Raises:
        JarLockInvalid: A line is not ``set coordinate sha256 bytes``, or the set has no line.
    """
    pins: list[JarPin] = []
    for number, line in enumerate(lock.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match line.split():
            case [name, coordinate, sha256, size] if (
                coordinate.count(":") in (2, 4) and re.fullmatch("[0-9a-f]{64}", sha256) and size.isdigit()
            ):
                pins.append(JarPin(name, coordinate, sha256, int(size)))
            case _:
                raise JarLockInvalid(
                    f"Line {number} of {lock} is {line!r}; expected `set coordinate sha256 bytes`.",
                    action=f"Restore the file: run `{RESTORE}`.",
                    path=str(lock),
                    line=number,
                )
    chosen = tuple(pin for pin in pins if pin.set_name == set_name)
    if not chosen:
        raise JarLockInvalid(
            f"{lock} has no jar in the set {set_name!r}; its sets are {sorted({pin.set_name for pin in pins})}.",
            action=f"Restore the file: run `{RESTORE}`.",
            path=str(lock),
        )
    return chosen


def fetch_jars(
    set_name: str, cache: Path, source: JarSource, *, lock: Path = LOCK, say: Callable[[str], None] = lambda line: None
) -> tuple[Path, ...]:
    """The paths of the verified jars of one set; jars that are missing or damaged in the cache are fetched.

    The sets are ``broker``, ``spark`` and ``s3`` (for tables in S3). The jars are in the folder ``jars/<set>`` of
    ``cache``.

    Raises:
        JarUnavailable: A jar could not be fetched.
        JarChecksumMismatch: A fetched jar does not have the sha256 in ``jars.lock``.
    """
    pins = read_lock(set_name, lock)
    folder = cache / "jars" / set_name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        seen = _Verified(folder)
        missing = [pin for pin in pins if not seen.holds(pin)]
        if missing:
            say(f"Fetching {len(missing)} of {len(pins)} jars of the set {set_name} ({_mebibytes(missing)} MiB).")
            # Each set has its own Ivy cache folder, because two sets may be fetched in parallel.
            _fetch(missing, folder, cache / "ivy" / set_name, source)
            for pin in missing:
                seen.check(pin)
        seen.save(pins)
    return tuple(folder / pin.file_name for pin in pins)


class _Verified:
    """Remembers size and modification time of each verified jar in a folder, so that it is hashed only once."""

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
            action=f"Run `{SET_UP}` again. If the jar still differs, check what your registry or mirror serves.",
            coordinate=pin.coordinate,
            seen=seen,
            expected=pin.sha256,
        )

    def save(self, pins: Sequence[JarPin]) -> None:
        facts = {pin.file_name: self._facts(pin) for pin in pins}
        if facts == {name: self._known.get(name) for name in facts}:
            return
        replace_text(self._record, json.dumps({**self._known, **facts}, indent=1))

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
    kinds = sorted({"jar", "bundle", *(pin.parts[3] for pin in pins)})
    command += ["-cache", str(ivy_cache), "-ivy", str(wanted), "-types", *kinds]
    command += ["-retrieve", str(folder / "[artifact]-[revision](-[classifier]).[ext]"), "-overwriteMode", "always"]
    for pin in pins:
        (folder / pin.file_name).unlink(missing_ok=True)
    try:
        done = completed(command, FETCH_WITHIN_S)
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        output = f"no end after {FETCH_WITHIN_S:.0f} s"
    finally:
        wanted.unlink(missing_ok=True)
        settings.unlink(missing_ok=True)
    absent = [pin.coordinate for pin in pins if not (folder / pin.file_name).exists()]
    if absent:
        # If one jar is missing, Ivy copies no jar at all, so the error names only the jars that Ivy could not find.
        # Ivy's cache is kept for the next attempt.
        unresolved = {":".join(match) for match in _UNRESOLVED.findall(output)}
        raise _unavailable([name for name in absent if name in unresolved] or absent, output)
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _unavailable(coordinates: Sequence[str], output: str) -> JarUnavailable:
    reason = _reason(output)
    if re.search("PKIX|SSLHandshake|trustAnchors", output):
        action = (
            "Java does not trust the server's certificate, as behind a proxy with its own authority. Set "
            "`JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=<file>` to a trust store with that authority, then run "
            f"`{SET_UP}` again."
        )
    else:
        action = (
            f"Check that this machine reaches a Maven registry, then run `{SET_UP}` again. For a mirror, set "
            "`HOLDFAST_IVY_SETTINGS` to an Ivy settings file."
        )
    shown = ", ".join(coordinates[:_NAMED]) + (f" and {len(coordinates) - _NAMED} more" * (len(coordinates) > _NAMED))
    return JarUnavailable(
        f"{len(coordinates)} jars could not be fetched: {shown}. Ivy reports: {reason}.",
        action=action,
        coordinates=", ".join(coordinates),
        reason=reason,
    )


def _reason(output: str) -> str:
    """The causes of a failure in Ivy's output, without network addresses."""
    lines = [_ADDRESS.sub("<address>", line.strip(" :\t!\n")) for line in output.splitlines()]
    causes = [line for line in lines if re.search(r"PKIX|xception|refused|denied|timed out|rror|no end after", line)]
    results = [line for line in lines if "not found" in line and line not in causes]
    chosen = list(dict.fromkeys(causes))[:3] or list(dict.fromkeys(results))[:3]
    return " | ".join(line[:300] for line in chosen) or " ".join(lines)[-300:]


def _ivy_file(pins: Sequence[JarPin]) -> str:
    lines = []
    for pin in pins:
        group, artifact, version, extension, classifier = pin.parts
        archive = f'<artifact name="{artifact}" type="{extension}" ext="{extension}" m:classifier="{classifier}"/>'
        lines.append(
            f'<dependency org="{group}" name="{artifact}" rev="{version}" transitive="false" force="true" '
            f'conf="default->default">{archive if classifier else ""}</dependency>'
        )
    # Ivy itself does not define the attribute `classifier`. It takes an attribute with a namespace prefix, here `m:`,
    # as an extra attribute. The namespace's name (`urn:maven`) can be any text.
    return (
        '<ivy-module version="2.0" xmlns:m="urn:maven">'
        '<info organisation="holdfast" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{"".join(lines)}</dependencies>'
        "</ivy-module>"
    )


def _ivy_jar() -> Path:
    folder = package_folder("pyspark")
    jars = [] if folder is None else sorted((folder / "jars").glob("ivy-*.jar"))
    if not jars:
        raise extra_missing("pyspark")
    return jars[-1]


def _trust(java: Java) -> list[str]:
    """The JVM option for the system's trust store; empty if the user or the Java installation chose a trust store."""
    options = os.environ.get("JAVA_TOOL_OPTIONS", "")  # tidy: allow-environment because Java defines this variable
    if "trustStore" in options or (java.home / "lib/security/cacerts").is_symlink():
        return []
    store = next((store for store in _SYSTEM_TRUST_STORES if store.exists()), None)
    return [f"-Djavax.net.ssl.trustStore={store}"] if store else []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mebibytes(pins: Sequence[JarPin]) -> int:
    return round(sum(pin.size_bytes for pin in pins) / 2**20)
