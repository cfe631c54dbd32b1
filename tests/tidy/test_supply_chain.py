"""The supply chain and unsafe calls: bill of materials, advisories, changed files, bandit."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from importlib.metadata import PathDistribution, distributions
from pathlib import Path

import pytest

from tests.tidy.advisories import verdict
from tests.tidy.bill_of_materials import Locked, bill, changed_files, everything, installed, locked_packages

PROJECT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("infra", "processors", "assets", "orchestration", "holdfast/__init__.py")


def bandit(*places: str) -> list[str]:
    """The findings of bandit, with the project's configuration."""
    command = [sys.executable, "-m", "bandit", "-q", "-r", "-c", "pyproject.toml", "--confidence-level", "medium"]
    done = subprocess.run(
        [*command, "-f", "json", *places], cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False
    )
    found = json.loads(done.stdout)
    assert found["errors"] == []
    return [
        f"{each['filename']}:{each['line_number']} {each['test_id']} {each['issue_text']}" for each in found["results"]
    ]


@pytest.mark.thorough
def test_bandit_finds_no_unsafe_call() -> None:
    assert bandit(*FOLDERS) == []


@pytest.mark.thorough
def test_bandit_finds_what_is_planted(tmp_path: Path) -> None:
    planted = "import subprocess, yaml, pickle\n"
    planted += "subprocess.run('ls ' + input(), shell=True)\nyaml.load(input())\npickle.loads(b'')\neval(input())\n"
    (tmp_path / "planted.py").write_text(planted)
    assert {line.split()[1] for line in bandit(str(tmp_path))} >= {"B602", "B506", "B301", "B307"}


@pytest.mark.thorough
def test_the_bill_holds_every_package_and_jar_with_its_hashes() -> None:
    packages = everything()
    made = json.loads(bill(packages, "1.0"))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    told = {
        each["purl"]: {one["content"] for file in each["externalReferences"] for one in file["hashes"]}
        for each in made["components"]
    }
    assert len(told) == len(packages) > 150
    assert told[f"pkg:pypi/dagster@{_version(packages, 'dagster')}"] == set(_hashes(packages, "dagster"))
    assert any(purl.startswith("pkg:maven/org.apache.kafka/kafka-clients@") for purl in told)
    assert all(told.values())
    assert "://" not in "".join(told)


def test_what_is_installed_is_what_the_lock_names() -> None:
    locked = {one.name: one.version for one in locked_packages((PROJECT / "requirements.lock").read_text())}
    locked.pop("pip", None)
    assert installed() == locked


@pytest.mark.thorough
def test_no_installed_file_was_changed() -> None:
    """Set-up checks each archive by its hash in the lock. This test compares each installed file with its archive."""
    changed = {one.metadata["Name"]: files for one in distributions() if (files := changed_files(one))}
    assert changed.pop("pip", []) == []
    assert changed == {}


@pytest.mark.parametrize(
    ("content", "changed"),
    [
        (b"roots", False),
        (b"roots and our own", False),
        (b"ro0ts", True),
        (b"root", True),
        (b"our own, and roots", True),
    ],
)
def test_certificates_may_be_added_and_none_that_was_there_changed(
    tmp_path: Path, content: bytes, changed: bool
) -> None:
    facts, list_of_roots = tmp_path / "certifi-1.dist-info", tmp_path / "certifi" / "cacert.pem"
    for folder in (facts, list_of_roots.parent):
        folder.mkdir()
    hashed = base64.urlsafe_b64encode(hashlib.sha256(b"roots").digest()).decode().rstrip("=")
    (facts / "RECORD").write_text(f"certifi/cacert.pem,sha256={hashed},5\n")
    list_of_roots.write_bytes(content)
    assert changed_files(PathDistribution(facts)) == (["certifi/cacert.pem"] if changed else [])


def test_silence_of_the_advisory_service_is_no_good_answer() -> None:
    skipped = {"dependencies": [{"name": "a", "skip_reason": "not found"}], "fixes": []}
    for output in ("", "no JSON", "{}", json.dumps(skipped)):
        assert verdict(output).judged == 0
        assert "NOT checked" in verdict(output).sentence
    hole = {"id": "X-1", "fix_versions": ["1.1"], "aliases": [], "description": ""}
    rows = [{"name": "a", "version": "1.0", "vulns": [hole]}, {"name": "b", "version": "2", "vulns": []}]
    found = verdict(json.dumps({"dependencies": [*rows, *skipped["dependencies"]]}))
    assert (found.judged, found.unjudged, found.holes) == (2, 1, ("a 1.0: X-1, mended in 1.1",))
    assert "1 packages were NOT judged" in found.sentence


def _version(packages: list[Locked], name: str) -> str:
    return next(one.version for one in packages if one.name == name)


def _hashes(packages: list[Locked], name: str) -> tuple[str, ...]:
    return next(one.hashes for one in packages if one.name == name)
