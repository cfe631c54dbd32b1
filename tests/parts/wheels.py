"""Builds the wheel of this checkout, and installs it into clean environments as `pip install` does for a user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from holdfast.infra.setup import bootstrap

PROJECT = Path(__file__).resolve().parents[2]
#: Seconds that an installation may take; a new machine downloads all packages.
INSTALL_S = 1800.0


def build_wheel(folder: Path) -> Path:
    """Builds the wheel from a copy of the checkout's files.

    The copy has no ignored files, so nothing of an earlier build gets in.
    """
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    source = folder / "source"
    for name in tracked:
        if (PROJECT / name).exists() or (PROJECT / name).is_symlink():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, source / name, follow_symlinks=False)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(source)], check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("holdfast-*.whl")
    return wheel


def install(wheel: Path, environment: Path, extra: str = "", python: str = sys.executable) -> Path:
    """Creates a virtual environment with the wheel and one extra; returns the folder of its programs.

    The versions come from requirements.lock, so a machine with a filled cache downloads nothing.
    """
    variables, flags = bootstrap._for_uv()
    uv = str(bootstrap.UV)
    subprocess.run([uv, "venv", "--quiet", "--python", python, str(environment)], env=variables, check=True)
    wanted = f"holdfast[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    # uv links packages from its cache, so Spark's half a gigabyte is not copied.
    done = subprocess.run(
        [
            *(uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), *flags),
            *(
                "--constraints",
                str(bootstrap.LOCK),
                "--build-constraints",
                str(bootstrap.LOCK),
                *bootstrap.STORED,
                wanted,
            ),
        ],
        env=variables,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return environment / "bin"


#: Environment variables of the test run that a user does not have.
_OURS = {"PYTHONPATH", "VIRTUAL_ENV", "HOLDFAST_PROJECT"}


def outside(home: Path, **variables: str) -> dict[str, str]:
    """The environment variables of a user without a checkout: nothing of this checkout is on the import path."""
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    return {**kept, "HOLDFAST_HOME": str(home), **variables}
