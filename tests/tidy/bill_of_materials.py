"""The bill of materials: every package and jar of the locks, in CycloneDX's format (``make bill``).

``python -m tests.tidy.bill_of_materials FILE`` writes it. It needs no network: names, versions and hashes are those of
``requirements.lock`` and ``jars.lock``.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

PROJECT = Path(__file__).resolve().parent.parent.parent
#: certifi's list of certificates, by its name in the package.
_CERTIFICATES = "certifi/cacert.pem"
#: The environment has these beside the locked packages: the project, and what installs.
_BESIDE = frozenset({"holdfast", "pip"})


@dataclass(frozen=True, slots=True)
class Locked:
    """A package or a jar of a lock, with the SHA-256 of each of its files."""

    kind: str
    group: str
    name: str
    version: str
    hashes: tuple[str, ...]


def locked_packages(text: str) -> Iterator[Locked]:
    """The packages of ``requirements.lock``."""
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text):
        named = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", entry)
        if named is not None:
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
            yield Locked("pypi", "", normal(named[1]), named[2], hashes)


def locked_jars(text: str) -> Iterator[Locked]:
    """The jars of ``jars.lock``, each once."""
    rows = {tuple(line.split()[1:3]) for line in text.splitlines() if line and not line.startswith("#")}
    for coordinate, digest in sorted(rows):
        group, name, version = coordinate.split(":")[:3]
        yield Locked("maven", group, name, version, (digest,))


def bill(packages: list[Locked], version: str) -> str:
    """The bill as JSON.

    Raises:
        ValueError: It does not fit CycloneDX's schema.
    """
    made = Bom(version=1)
    made.metadata.component = Component(name="holdfast", version=version, type=ComponentType.APPLICATION)
    for one in packages:
        url = PackageURL(one.kind, one.group or None, one.name, one.version)
        # A package has a file for each platform, so a hash belongs to a distribution; a jar is one file.
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in one.hashes]
        files = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(url)), hashes=hashes)
        made.components.add(
            Component(
                name=one.name,
                group=one.group or None,
                version=one.version,
                type=ComponentType.LIBRARY,
                bom_ref=str(url),
                purl=url,
                hashes=hashes if one.kind == "maven" else (),
                external_references=[files],
            )
        )
    text: str = JsonV1Dot6(made).output_as_string(indent=1)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"the bill does not fit CycloneDX 1.6: {wrong!r}")
    return text


def everything() -> list[Locked]:
    """All that the locks name."""
    packages = locked_packages((PROJECT / "requirements.lock").read_text())
    return [*packages, *locked_jars((PROJECT / "jars.lock").read_text())]


def installed() -> dict[str, str]:
    """The installed packages, without the project and pip: name -> version."""
    found = {normal(one.metadata["Name"]): one.version for one in distributions()}
    return {name: version for name, version in found.items() if name not in _BESIDE}


def changed_files(distribution: Distribution) -> list[str]:
    """The installed files of a package whose content is not the one that was installed; compiled files have no hash.

    The owner of a machine may add certificates to the end of certifi's list: no line that was there may change.
    """
    changed = []
    for file in distribution.files or ():
        if file.hash is None or file.suffix == ".pyc":
            continue
        path = Path(str(distribution.locate_file(file)))
        content = path.read_bytes() if path.is_file() else b""
        if str(file) == _CERTIFICATES:
            content = content[: file.size]
        digest = hashlib.new(file.hash.mode, content).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != file.hash.value:
            changed.append(str(file))
    return changed


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(target: Path) -> None:
    """Write the bill to a file."""
    found = re.search(r'^version = "(.+)"', (PROJECT / "pyproject.toml").read_text(), re.M)
    assert found is not None
    packages = everything()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(bill(packages, found[1]) + "\n")
    print(f"{target}: {len(packages)} packages and jars")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
