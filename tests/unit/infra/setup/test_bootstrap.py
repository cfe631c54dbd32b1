"""The first half of set-up, which uses only the standard library. Tests its decisions before anything is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.infra.setup import bootstrap
from holdfast.infra.setup.bootstrap import FIRST, LOCK, is_progress, python_problem, requirements_of


def test_an_old_python_is_told_which_one_is_needed() -> None:
    assert python_problem((3, 11)) is None
    assert python_problem((3, 10)) == "This is Python 3.10; Holdfast needs 3.11 or newer."


def test_an_environment_of_another_checkout_is_not_installed_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Set-up does not install into an environment that is a link to an environment of another checkout.

    Set-up creates an outdated environment again. Here this would empty the folder to which the link leads.
    """
    other, link = tmp_path / "other", tmp_path / ".venv"
    other.mkdir()
    (other / "kept").touch()
    link.symlink_to(other)
    monkeypatch.setattr(bootstrap, "ENVIRONMENT", link)
    monkeypatch.setattr(bootstrap, "PYTHON", link / "bin" / "python")
    monkeypatch.setattr(bootstrap, "STAMP", link / "installed")
    assert bootstrap.main([]) != 0
    told = capsys.readouterr().err
    assert f"does not install into {link}: it is a link to {other}." in told
    assert f"Delete the link {link}" in told
    assert (other / "kept").exists()
    assert bootstrap.link_problem(other) is None


def test_what_pip_installs_is_taken_from_the_lock_with_its_hashes() -> None:
    chosen = requirements_of(LOCK.read_text(), FIRST)
    names = [line.split("==")[0] for line in chosen.splitlines() if "==" in line]
    assert sorted(names) == sorted(FIRST)
    assert chosen.count("--hash=sha256:") >= 2


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Resolved 140 packages in 1.60s", True),
        ("Downloading pyarrow (52.5MiB)", True),
        ("Downloading spark (1.1GiB)", True),
        ("Downloading pandas (12.2MiB)", False),
        ("Downloading idna (900.0KiB)", False),
        (" Downloaded pyarrow", False),
        ("   Building pyspark==4.1.3", True),
        ("      Built pyspark==4.1.3", True),
        ("Prepared 140 packages in 45.76s", True),
        ("Installed 140 packages in 220ms", True),
        ("Bytecode compiled 8600 files in 7s", True),
        (" + aiohttp==3.14.5", False),
    ],
)
def test_progress_is_steps_and_large_downloads(line: str, shown: bool) -> None:
    assert is_progress(line) is shown


def test_set_up_needs_the_standard_library_only() -> None:
    # The option -S hides all installed packages.
    command = [sys.executable, "-S", "-c", "import holdfast.infra.setup.bootstrap"]
    run = subprocess.run(command, cwd=LOCK.parent, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_set_up_compiles_the_checkout_even_where_python_writes_no_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "processors" / "one.py"
    module.parent.mkdir()
    module.write_text("1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(bootstrap, "PROJECT", tmp_path)
    monkeypatch.setattr(bootstrap, "PYTHON", Path(sys.executable))
    bootstrap.compile_checkout()
    assert [path.name.partition(".")[0] for path in module.parent.glob("__pycache__/*.pyc")] == ["one"]
