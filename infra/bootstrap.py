"""Makes this checkout runnable with nothing but Python and make: ``python3 -m holdfast.infra.bootstrap [--browser]``.

It makes ``.venv``, installs exactly what ``requirements.lock`` names, every file checked by its hash, and the project
itself, and then lets that environment prepare the rest (:mod:`holdfast.infra.machine`: Java, jars, a browser).

Invariants:
    - Only the standard library is used, and old Pythons can read this far enough to be told what is wrong.
    - A step is repeated only when what it depends on has changed; an interrupted one is done again.
    - Two runs at the same time follow each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OLDEST_PYTHON = (3, 11)
PROJECT = Path(__file__).resolve().parent.parent
ENVIRONMENT = PROJECT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "installed"
LOCK = PROJECT / "requirements.lock"
#: They build the few packages that come as source, so they come first.
BUILDERS = ("setuptools", "wheel", "packaging")
#: Only downloads of so many megabytes are worth a line.
LARGE_MB = 20.0

_LARGE = re.compile(r"Downloading (\S+?)(?:\.metadata)? \(([\d.]+) MB\)")


def main(arguments: list[str]) -> int:
    """Set this checkout up; returns the process's exit code."""
    problem = python_problem(sys.version_info[:2])
    if problem:
        return _complain(problem, "Name a newer one, as in `make PYTHON=python3.12 setup`.")
    # The folder itself is the lock: it is there before anything is made.
    folder = os.open(PROJECT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not _is_current():
            _install()
    except subprocess.CalledProcessError as failure:
        return _complain(
            f"Set-up stopped: a step ended with exit code {failure.returncode}.",
            "Mend what the lines above name and run the same command again; what was done is kept. If it was the "
            "making of .venv: Debian's package python3-venv holds what that needs.",
        )
    finally:
        os.close(folder)
    return subprocess.call([str(PYTHON), "-m", "holdfast.infra.machine", *arguments], cwd=PROJECT)


def python_problem(version: tuple[int, int]) -> str | None:
    """What is wrong with a Python of this version, if something is."""
    if version >= OLDEST_PYTHON:
        return None
    return f"This is Python {version[0]}.{version[1]}; Holdfast needs {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer."


def requirements_of(lock: str, names: tuple[str, ...]) -> str:
    """The entries of a lock's text for these names, each with its hashes."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + lock)
    return "\n".join(entry for entry in entries if entry.split("==")[0].strip() in names) + "\n"


def _is_current() -> bool:
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == _fingerprint()


def _fingerprint() -> str:
    """Everything that an installed environment depends on."""
    seen = hashlib.sha256(LOCK.read_bytes() + (PROJECT / "pyproject.toml").read_bytes())
    return f"{seen.hexdigest()} {sys.version.split()[0]} {PROJECT}"


def _install() -> None:
    started = time.monotonic()
    STAMP.unlink(missing_ok=True)
    if not _fits():
        _say(f"making the environment .venv with Python {sys.version.split()[0]}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    _say("installing requirements.lock (the first time about 900 MB are downloaded, which takes some minutes)")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as builders:
        builders.write(requirements_of(LOCK.read_text(), BUILDERS))
        builders.flush()
        _pip("--require-hashes", "-r", builders.name)
    # The lock is complete, so there is nothing to resolve.
    _pip("--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517", "-r", str(LOCK))
    _say("installing the holdfast command")
    _pip("--no-deps", "--no-build-isolation", "-e", str(PROJECT))
    STAMP.write_text(_fingerprint())
    _say(f"the environment is ready after {time.monotonic() - started:.0f} s")


def _fits() -> bool:
    """Whether .venv is an environment of this Python at this place; a copied or outdated one is made anew."""
    if not PYTHON.exists():
        return False
    ask = "import sys; print(sys.version.split()[0], sys.prefix)"
    told = subprocess.run([str(PYTHON), "-c", ask], capture_output=True, text=True, check=False).stdout.split()
    return told[:1] == [sys.version.split()[0]] and Path(*told[1:]).resolve() == ENVIRONMENT


def _pip(*arguments: str) -> None:
    """Run pip install; of all that it says, tell what shows that time is well spent, and everything when it fails."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *arguments]
    lines = []
    collected = 0
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            lines.append(line)
            word = line.split(" ", 1)[0]
            large = _LARGE.search(line)
            collected += word == "Collecting"
            if large and float(large[2]) >= LARGE_MB:
                _say(f"  downloading {large[1]} ({large[2]} MB)")
            elif word == "Collecting" and collected % 25 == 0:
                _say(f"  {collected} packages")
            elif line.startswith(("Building wheels for", "Installing collected")):
                _say("  " + line.strip()[:100])
    if pip.returncode != 0:
        sys.stderr.writelines(lines[-40:])
        raise subprocess.CalledProcessError(pip.returncode, command)


def _say(line: str) -> None:
    print(f"set-up: {line}", flush=True)


def _complain(seen: str, action: str) -> int:
    print(f"{seen} What to do: {action}", file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
