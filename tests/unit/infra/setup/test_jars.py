"""Jars are fetched once and their checksums are always checked. Every error names the coordinate of the jar."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.infra.setup.jars import (
    LOCK,
    JarChecksumMismatch,
    JarLockInvalid,
    JarSource,
    JarUnavailable,
    fetch_jars,
    read_lock,
)
from holdfast.infra.setup.java import Java

CONTENT = b"the bytes of a small library"
COORDINATE = "org.example:small:1.0"


def lock_line(content: bytes = CONTENT, coordinate: str = COORDINATE) -> str:
    return f"tiny {coordinate} {hashlib.sha256(content).hexdigest()} {len(content)}\n"


@pytest.fixture
def mirror(tmp_path: Path, java: Java) -> Callable[[bytes], JarSource]:
    """Publishes a small library with these bytes in a folder that acts as a Maven registry; Ivy fetches from it."""

    def publish(content: bytes) -> JarSource:
        folder = tmp_path / "mirror" / "org" / "example" / "small" / "1.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "small-1.0.jar").write_bytes(content)
        (folder / "small-1.0.pom").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>"
            "<artifactId>small</artifactId><version>1.0</version></project>"
        )
        return JarSource(java, ivy_settings(tmp_path, (tmp_path / "mirror").as_uri()))

    return publish


def ivy_settings(folder: Path, root: str) -> Path:
    settings = folder / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root="{root}" checksums=""/></resolvers></ivysettings>'
    )
    return settings


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "jars.lock"
    path.write_text("# a comment\n\n" + lock_line())
    return path


def test_a_missing_jar_is_fetched_and_a_present_one_is_not(tmp_path: Path, lock: Path, mirror, java: Java) -> None:
    said: list[str] = []
    first = fetch_jars("tiny", tmp_path / "cache", mirror(CONTENT), lock=lock, say=said.append)
    assert [path.read_bytes() for path in first] == [CONTENT]
    assert said == ["Fetching 1 of 1 jars of the set tiny (0 MiB)."]
    nowhere = JarSource(java, tmp_path / "no settings")
    assert fetch_jars("tiny", tmp_path / "cache", nowhere, lock=lock, say=said.append) == first
    assert len(said) == 1


def test_a_damaged_jar_in_the_cache_is_replaced(tmp_path: Path, lock: Path, mirror) -> None:
    (jar,) = fetch_jars("tiny", tmp_path / "cache", mirror(CONTENT), lock=lock)
    jar.write_bytes(CONTENT[::-1])
    fetch_jars("tiny", tmp_path / "cache", mirror(CONTENT), lock=lock)
    assert jar.read_bytes() == CONTENT


def test_a_registry_that_serves_other_bytes_is_an_error_and_nothing_of_it_stays(
    tmp_path: Path, lock: Path, mirror
) -> None:
    with pytest.raises(JarChecksumMismatch) as failure:
        fetch_jars("tiny", tmp_path / "cache", mirror(b"malice"), lock=lock)
    assert COORDINATE in failure.value.message
    assert failure.value.fields["seen"] == hashlib.sha256(b"malice").hexdigest()
    assert failure.value.fields["expected"] == hashlib.sha256(CONTENT).hexdigest()
    assert not list((tmp_path / "cache").rglob("*.jar"))
    # Once the Maven registry serves the right bytes, fetching works again.
    assert fetch_jars("tiny", tmp_path / "cache", mirror(CONTENT), lock=lock)


@pytest.mark.thorough
def test_a_coordinate_that_the_registry_lacks_is_named(tmp_path: Path, lock: Path, mirror) -> None:
    lock.write_text(lock_line() + lock_line(coordinate="org.example:absent:2.0"))
    with pytest.raises(JarUnavailable) as failure:
        fetch_jars("tiny", tmp_path / "cache", mirror(CONTENT), lock=lock)
    assert failure.value.fields["coordinates"] == "org.example:absent:2.0"
    assert "HOLDFAST_IVY_SETTINGS" in failure.value.action


def test_an_unreachable_registry_is_an_error_that_names_the_coordinate(tmp_path: Path, lock: Path, java: Java) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        root = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        source = JarSource(java, ivy_settings(tmp_path, root))
        with pytest.raises(JarUnavailable, match=COORDINATE) as failure:
            fetch_jars("tiny", tmp_path / "cache", source, lock=lock)
    assert "refused" in failure.value.message
    assert "127.0.0.1" not in failure.value.message


@pytest.mark.thorough
def test_two_fetches_at_once_both_get_the_jar(tmp_path: Path, lock: Path, mirror) -> None:
    source = mirror(CONTENT)
    said: list[str] = []
    with ThreadPoolExecutor(2) as both:
        runs = [
            both.submit(fetch_jars, "tiny", tmp_path / "cache", source, lock=lock, say=said.append) for _ in range(2)
        ]
    assert runs[0].result() == runs[1].result()
    assert len(said) == 1


@pytest.mark.parametrize(
    "line",
    [
        "tiny org.example:small:1.0 nothash 12",
        "tiny org.example:small 00",
        f"tiny small {'0' * 64} 12",
        f"tiny a:b:c {'0' * 64} -1",
    ],
)
def test_a_line_that_is_no_pin_is_named(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text("# first\n" + line + "\n")
    with pytest.raises(JarLockInvalid, match="Line 2"):
        read_lock("tiny", lock)


def test_an_unknown_set_is_an_error_that_names_the_known_ones(lock: Path) -> None:
    with pytest.raises(JarLockInvalid, match="tiny"):
        read_lock("huge", lock)


def test_the_lock_of_this_project_has_both_sets_and_no_address() -> None:
    assert len(read_lock("broker")) > 40
    assert len(read_lock("spark")) == 7
    assert "://" not in LOCK.read_text()


def test_a_certificate_that_java_does_not_trust_is_told_with_the_remedy(tmp_path: Path, lock: Path) -> None:
    executable = tmp_path / "java"
    executable.write_text(
        "#!/bin/sh\necho 'Server access error at url https://registry.example/x.pom "
        "(SSLHandshakeException: PKIX path building failed)' >&2\nexit 1\n"
    )
    executable.chmod(0o755)
    with pytest.raises(JarUnavailable, match=COORDINATE) as failure:
        fetch_jars("tiny", tmp_path / "cache", JarSource(Java(tmp_path, executable, 21, "PATH")), lock=lock)
    assert "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=" in failure.value.action
    assert "PKIX" in failure.value.message
    assert "registry.example" not in failure.value.message
