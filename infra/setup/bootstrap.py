"""Sets up this checkout on a machine that has only Python and make.

``python3 -m holdfast.infra.setup.bootstrap [--browser]`` is what ``make setup`` runs.

It creates ``.venv``. There pip installs uv, and uv installs the project and exactly the packages of
``requirements.lock``, with a hash check of every file. That environment then prepares the rest
(``holdfast.infra.machine``: Java, jars, a browser). ``--lock`` writes ``requirements.lock`` from ``requirements.in``
instead.

Invariants:
    - Only the standard library is used, and old Pythons can parse this module to report their version.
    - A step is repeated only when its inputs have changed, or when it was interrupted. Two runs follow each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.infra.masking import masked
from holdfast.infra.setup.pip_settings import pip_options, uv_flags, uv_variables

OLDEST_PYTHON = (3, 11)
PROJECT = Path(__file__).resolve().parents[2]
ENVIRONMENT = PROJECT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "installed"
LOCK = PROJECT / "requirements.lock"
UV = ENVIRONMENT / "bin" / "uv"
#: The module that prepares the machine.
MACHINE = "holdfast.infra.machine"
#: pip installs this package; uv installs all others.
FIRST = ("uv",)
#: pyspark is a source package with 455 MB of jars; compressing them again into a wheel costs 9 s without benefit.
STORED = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
#: A download of at least this size gets a progress line, megabytes.
LARGE_MB = 20.0

_DOWNLOAD = re.compile(r"Downloading \S+ \(([\d.]+)(\w+)\)")


def main(arguments: list[str]) -> int:
    """Set this checkout up; returns the process's exit code."""
    problem = python_problem(sys.version_info[:2])
    if problem:
        return _complain(problem, "Name a newer one, as in `make PYTHON=python3.12 setup`.")
    # The folder itself is the lock file, because it exists before the first step.
    folder = os.open(PROJECT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not (PYTHON.exists() and STAMP.exists() and STAMP.read_text() == _fingerprint()):
            _install()
        if "--lock" in arguments:
            _write_lock()
            return 0
    except subprocess.CalledProcessError as failure:
        return _complain(
            f"Set-up stopped: a step ended with exit code {failure.returncode}.",
            "Mend what the lines above name and run the same command again; what was downloaded is kept. If it was the "
            "making of .venv: Debian's package python3-venv holds what that needs. If no registry was reached: name "
            "yours to pip (`pip config set global.index-url`, `global.cert`); set-up uses pip's configuration.",
        )
    finally:
        os.close(folder)
    return subprocess.call([str(PYTHON), "-m", MACHINE, *arguments], cwd=PROJECT)


def python_problem(version: tuple[int, int]) -> str | None:
    """The fault of a Python of this version; None if it is usable."""
    if version >= OLDEST_PYTHON:
        return None
    return f"This is Python {version[0]}.{version[1]}; Holdfast needs {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer."


def requirements_of(lock: str, names: tuple[str, ...]) -> str:
    """The entries of a lock's text for these names, each with its hashes."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + lock)
    return "\n".join(entry for entry in entries if entry.split("==")[0].strip() in names) + "\n"


def _fingerprint() -> str:
    """Everything that an installed environment depends on."""
    seen = hashlib.sha256(LOCK.read_bytes() + (PROJECT / "pyproject.toml").read_bytes())
    return f"{seen.hexdigest()} {sys.version.split()[0]} {PROJECT}"


def _install() -> None:
    started = time.monotonic()
    # uv compiles only packages of the same run, so packages of an interrupted run are installed again.
    complete = STAMP.exists() and _fits()
    STAMP.unlink(missing_ok=True)
    if not complete:
        _say(f"making the environment .venv with Python {sys.version.split()[0]}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    _say("installing requirements.lock (the first time about 900 MB are downloaded, which takes some minutes)")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as first:
        first.write(requirements_of(LOCK.read_text(), FIRST))
        first.flush()
        _pip("install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", first.name)
    # The lock is complete, so uv resolves nothing.
    _uv_install("--require-hashes", *STORED, "-r", str(LOCK))
    _say("installing the holdfast command")
    _uv_install("-e", str(PROJECT))
    _say("compiling the packages to bytecode, and fetching the jars beside it")
    # The preparation that follows repeats this step and reports its failures.
    with subprocess.Popen(
        [str(PYTHON), "-m", MACHINE], cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        _compile()
    STAMP.write_text(_fingerprint())
    _say(f"the environment is ready after {time.monotonic() - started:.0f} s")


def _compile() -> None:
    """Write the bytecode of all packages, by all cores.

    Without this step, every process compiles its imports, and repeats that each time if PYTHONDONTWRITEBYTECODE is set.
    """
    # Packages contain files for other Python versions, such as templates; their errors do not matter here.
    folders = [str(path) for path in ENVIRONMENT.glob("lib/python*/site-packages")]
    subprocess.run([str(PYTHON), "-m", "compileall", "-qq", "-j", "0", *folders], cwd=PROJECT, check=False)


def _fits() -> bool:
    """Whether .venv belongs to this Python and this folder, and is neither a copy nor outdated."""
    if not PYTHON.exists():
        return False
    ask = "import sys; print(sys.version.split()[0], sys.prefix)"
    told = subprocess.run([str(PYTHON), "-c", ask], capture_output=True, text=True, check=False).stdout.split()
    return told[:1] == [sys.version.split()[0]] and Path(*told[1:]).resolve() == ENVIRONMENT


def _write_lock() -> None:
    """Write requirements.lock for the oldest Python, with the versions that it holds unless requirements.in differs."""
    _say("writing requirements.lock from requirements.in")
    environment, flags = _for_uv()
    # Packages in a local folder have hashes that differ from the registry's hashes.
    environment.pop("UV_FIND_LINKS", None)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    command = [str(UV), "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--python-version", oldest]
    command += [*flags, "--output-file", LOCK.name, "requirements.in"]
    subprocess.run(command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL, check=True)


def _pip(*arguments: str) -> str:
    command = [str(PYTHON), "-m", "pip", *arguments]
    return subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True).stdout


def _for_uv() -> tuple[dict[str, str], list[str]]:
    """The environment and the flags with which uv reaches the registry that pip is configured for."""
    options = pip_options(_pip("config", "list"))
    system = ssl.get_default_verify_paths()
    certificates = bool(system.cafile or system.capath)
    # tidy: allow-environment because the variables of pip and uv are theirs
    return uv_variables(options, os.environ, system_certificates=certificates), uv_flags(options)


def _uv_install(*arguments: str) -> None:
    """Run uv pip install; on a terminal uv shows its progress, elsewhere only the important lines are printed."""
    environment, flags = _for_uv()
    # Source packages are built in isolation, by the locked builders: only such wheels stay in uv's cache.
    builders = ["--build-constraints", str(LOCK), "--require-build-hashes"]
    command = [str(UV), "pip", "install", "--python", str(PYTHON), "--no-deps", *builders, *flags, *arguments]
    if sys.stderr.isatty():
        subprocess.run(command, cwd=PROJECT, env=environment, check=True)
        return
    lines = []
    with subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.PIPE, text=True) as uv:
        for line in uv.stderr or ():
            lines.append(masked(line))
            if is_progress(line):
                _say("  " + lines[-1].strip()[:100])
    if uv.returncode != 0:
        sys.stderr.writelines(lines[-40:])
        raise subprocess.CalledProcessError(uv.returncode, command)


def is_progress(line: str) -> bool:
    """Whether a line of uv's output shows that time is well spent: a step, or a download of at least ``LARGE_MB``."""
    large = _DOWNLOAD.search(line)
    if large:
        return large[2] == "GiB" or (large[2] == "MiB" and float(large[1]) >= LARGE_MB)
    return line.lstrip().startswith(("Resolved", "Building", "Built", "Prepared", "Installed", "Bytecode"))


def _say(line: str) -> None:
    print(f"set-up: {line}", flush=True)


def _complain(seen: str, action: str) -> int:
    print(f"{seen} What to do: {action}", file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
