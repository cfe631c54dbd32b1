"""Sets up this checkout on a machine that has only Python and make.

``make setup`` runs ``python3 -m holdfast.infra.setup.bootstrap [--browser]``.

The program creates the virtual environment ``.venv``. In ``.venv``, pip installs uv; then uv installs the project and
exactly the packages of ``requirements.lock``, with a hash check of every file. Then ``holdfast.infra.machine`` prepares
Java, jars and a browser. With ``--lock``, this module writes ``requirements.lock`` from ``requirements.in`` instead.

Invariants:
    - This module uses only the standard library. Old versions of Python can parse this module, so that it can report
      that the version is too old.
    - A step is repeated only if its inputs have changed or if it was interrupted. A lock prevents parallel runs.
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
#: Name of the module that prepares Java, jars and a browser.
MACHINE = "holdfast.infra.machine"
#: Packages that pip installs first; uv then installs all other packages.
FIRST = ("uv",)
#: uv's option to build pyspark's wheel without compression. pyspark has 455 MB of jars, which are already compressed;
#: compressing them again takes 9 s.
STORED = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
#: Downloads of at least this many megabytes get a progress line.
LARGE_MB = 20.0

_DOWNLOAD = re.compile(r"Downloading \S+ \(([\d.]+)(\w+)\)")


def main(arguments: list[str]) -> int:
    """Set up this checkout; returns the exit code of the process."""
    problem = python_problem(sys.version_info[:2])
    if problem:
        return _complain(problem, "Name a newer one, as in `make PYTHON=python3.12 setup`.")
    # The project's folder itself is used as the lock file, because it always exists.
    folder = os.open(PROJECT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not (PYTHON.exists() and STAMP.exists() and STAMP.read_text() == _fingerprint()):
            if (problem := link_problem(ENVIRONMENT)) is not None:
                return _complain(problem, f"Delete the link {ENVIRONMENT}, and run the same command again.")
            _install()
        compile_checkout()
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
    """A sentence about a Python version that is too old, for example ``(3, 9)``; None if the version is supported."""
    if version >= OLDEST_PYTHON:
        return None
    return f"This is Python {version[0]}.{version[1]}; Holdfast needs {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer."


def link_problem(environment: Path) -> str | None:
    """A sentence about a virtual environment that is a symbolic link; None if it is a folder, or absent.

    Set-up may empty the environment. If it is a link, set-up would empty the environment of another checkout.
    """
    if not environment.is_symlink():
        return None
    return f"Set-up does not install into {environment}: it is a link to {os.readlink(environment)}."


def requirements_of(lock: str, names: tuple[str, ...]) -> str:
    """The entries with hashes of the packages ``names`` in ``lock``, which is the text of ``requirements.lock``."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + lock)
    return "\n".join(entry for entry in entries if entry.split("==")[0].strip() in names) + "\n"


def _fingerprint() -> str:
    """A text that changes if packages must be installed again.

    It has a hash of the lock file and pyproject.toml, the version of Python, and the project's folder.
    """
    seen = hashlib.sha256(LOCK.read_bytes() + (PROJECT / "pyproject.toml").read_bytes())
    return f"{seen.hexdigest()} {sys.version.split()[0]} {PROJECT}"


def _install() -> None:
    started = time.monotonic()
    # An incomplete environment is created again, because uv would not compile the packages of an interrupted run.
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
    # uv is called with --no-deps (in `_uv_install`), because the lock already lists all dependencies.
    _uv_install("--require-hashes", *STORED, "-r", str(LOCK))
    _say("installing the holdfast command")
    _uv_install("-e", str(PROJECT))
    _say("compiling the packages to bytecode, and fetching the jars beside it")
    # Jars are fetched while packages are compiled. A failure of this fetch is ignored, because `main` fetches missing
    # jars again later, and then reports failures.
    with subprocess.Popen(
        [str(PYTHON), "-m", MACHINE], cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        _compile()
    STAMP.write_text(_fingerprint())
    _say(f"the environment is ready after {time.monotonic() - started:.0f} s")


def _compile() -> None:
    """Compile all packages to bytecode, on all cores.

    Without this step, a package is compiled when a process first imports it. If PYTHONDONTWRITEBYTECODE is set, every
    process compiles its imports again.
    """
    # Errors are ignored (check=False), because packages contain files for other Python versions, and templates.
    folders = [str(path) for path in ENVIRONMENT.glob("lib/python*/site-packages")]
    subprocess.run([str(PYTHON), "-m", "compileall", "-qq", "-j", "0", *folders], cwd=PROJECT, check=False)


def compile_checkout() -> None:
    """Compile this checkout's own modules to bytecode, so that no process has to compile them when it imports them.

    Without this step, a command that imports the engine needs a third more CPU. Modules that are compiled already are
    skipped. Python notices an edit of a module by its time and size, and then ignores the bytecode.
    """
    # `compileall` does not follow the links in the folder `holdfast`, so the folders behind the links are listed here.
    folders = [str(PROJECT / each) for each in ("holdfast", "infra", "processors", "assets", "orchestration")]
    subprocess.run([str(PYTHON), "-m", "compileall", "-qq", *folders], cwd=PROJECT, check=False)


def _fits() -> bool:
    """Whether ``.venv`` was created by this version of Python and in this folder, not copied from another folder."""
    if not PYTHON.exists():
        return False
    ask = "import sys; print(sys.version.split()[0], sys.prefix)"
    told = subprocess.run([str(PYTHON), "-c", ask], capture_output=True, text=True, check=False).stdout.split()
    return told[:1] == [sys.version.split()[0]] and Path(*told[1:]).resolve() == ENVIRONMENT


def _write_lock() -> None:
    """Write requirements.lock for the oldest supported Python.

    Versions in the existing lock are kept unless requirements.in requires other versions.
    """
    _say("writing requirements.lock from requirements.in")
    environment, flags = _for_uv()
    # Local packages (find-links) are not used, because their hashes may differ from those of the package registry.
    environment.pop("UV_FIND_LINKS", None)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    command = [str(UV), "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--python-version", oldest]
    command += [*flags, "--output-file", LOCK.name, "requirements.in"]
    subprocess.run(command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL, check=True)


def _pip(*arguments: str) -> str:
    command = [str(PYTHON), "-m", "pip", *arguments]
    return subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True).stdout


def _for_uv() -> tuple[dict[str, str], list[str]]:
    """Environment variables and flags with which uv uses the package registry in pip's configuration."""
    options = pip_options(_pip("config", "list"))
    system = ssl.get_default_verify_paths()
    certificates = bool(system.cafile or system.capath)
    # tidy: allow-environment because pip and uv define these variables
    return uv_variables(options, os.environ, system_certificates=certificates), uv_flags(options)


def _uv_install(*arguments: str) -> None:
    """Run ``uv pip install``. On a terminal, uv shows its progress; otherwise only its important lines are printed."""
    environment, flags = _for_uv()
    # Source packages are built in isolation with locked build tools. uv keeps only wheels built that way in its cache.
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
    """Whether to print a line of uv's output: a new step, or a download of at least ``LARGE_MB``."""
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
