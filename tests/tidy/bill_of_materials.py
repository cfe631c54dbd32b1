"""The bill of materials: every locked package and jar, in CycloneDX format (``make bill``).

``python -m tests.tidy.bill_of_materials FILE`` writes it. The program needs no network, because names, versions and
hashes are in ``requirements.lock`` and ``jars.lock``.
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
from packageurl import PackageURL

PROJECT = Path(__file__).resolve().parent.parent.parent
#: The path of the list of certificates in the package certifi.
_CERTIFICATES = "certifi/cacert.pem"
#: Installed packages that are not locked: the project itself, and the installer.
_BESIDE = frozenset({"holdfast", "pip"})


@dataclass(frozen=True, slots=True)
class Locked:
    """One locked package or jar, with the SHA-256 of each of its files."""

    kind: str
    group: str
    name: str
    version: str
    hashes: tuple[str, ...]


def locked_packages(text: str) -> Iterator[Locked]:
    """The packages in ``requirements.lock``."""
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text):
        named = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", entry)
        if named is not None:
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
            yield Locked("pypi", "", normal(named[1]), named[2], hashes)


def locked_jars(text: str) -> Iterator[Locked]:
    """The jars in ``jars.lock``, without duplicates."""
    rows = {tuple(line.split()[1:3]) for line in text.splitlines() if line and not line.startswith("#")}
    for coordinate, digest in sorted(rows):
        group, name, version = coordinate.split(":")[:3]
        yield Locked("maven", group, name, version, (digest,))


def bill(packages: list[Locked], version: str) -> str:
    """The bill as JSON.

    Raises:
        ValueError: The bill does not fit CycloneDX's schema.
    """
    made = Bom(version=1)
    made.metadata.component = Component(name="holdfast", version=version, type=ComponentType.APPLICATION)
    for one in packages:
        url = PackageURL(one.kind, one.group or None, one.name, one.version)
        # A package has one file per platform, so its hashes belong to the whole distribution. A jar is one file.
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
    # The import takes 2 s of CPU, and each test process imports this module to collect its cases.
    from cyclonedx.validation.json import JsonStrictValidator

    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"the bill does not fit CycloneDX 1.6: {wrong!r}")
    return text


def everything() -> list[Locked]:
    """All packages and jars in the locks."""
    packages = locked_packages((PROJECT / "requirements.lock").read_text())
    return [*packages, *locked_jars((PROJECT / "jars.lock").read_text())]


def installed() -> dict[str, str]:
    """The versions of installed packages by name, without the project and pip."""
    found = {normal(one.metadata["Name"]): one.version for one in distributions()}
    return {name: version for name, version in found.items() if name not in _BESIDE}


def changed_files(distribution: Distribution) -> list[str]:
    """The installed files of a package whose content differs from the installed archive.

    Compiled files are not compared.

    The owner of a machine may append certificates to certifi's list, but no existing line may change.
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
    """The normalised name of a package. Package indexes compare names in this form."""
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
