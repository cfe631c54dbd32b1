"""Finds a Chromium browser for the tests of the UI, and installs Chromium if it is missing.

Invariants:
    - An installed Chromium is used, and never changed.
    - Before an installation, ``say`` is called with a line that names the installer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.infra.system.process import completed

#: Names of Chromium's executable, in the order of preference; the small headless build comes first.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Timeout of one installation, seconds.
INSTALL_WITHIN_S = 900.0
# Folders to which Playwright downloads browsers, on Linux and on macOS.
_DOWNLOADS = ("~/.cache/ms-playwright", "~/Library/Caches/ms-playwright")
_DOWNLOADED = ("chrome-headless-shell", "headless_shell", "chrome", "Chromium")


class NoBrowser(HoldfastError):
    """No Chromium is installed, and every attempt to install one failed."""


def find_browser(environment: Mapping[str, str] | None = None) -> Path | None:
    """The path of an installed Chromium, from ``PATH`` or Playwright's downloads; None if it is not installed."""
    environment = os.environ if environment is None else environment
    for name in NAMES:
        found = shutil.which(name, path=environment.get("PATH", ""))
        if found:
            return Path(found)
    chosen = environment.get("PLAYWRIGHT_BROWSERS_PATH")
    folders = [Path(chosen)] if chosen else [Path(folder).expanduser() for folder in _DOWNLOADS]
    return next(iter(_downloads(folders)), None)


def find_or_install_browser(say: Callable[[str], None]) -> Path:
    """The path of an installed Chromium; if it is missing, it is installed with apt (as root) or Playwright.

    Raises:
        NoBrowser: Every attempt to install failed; the error has the output of each attempt.
    """
    found = find_browser()
    if found:
        return found
    failures: list[str] = []
    for means, commands in _means():
        say(f"no Chromium found; installing one by {means}")
        failure = next(filter(None, map(_run, commands)), None)
        found = find_browser()
        if found:
            return found
        failures.append(f"{means}: {failure or 'succeeded, but no Chromium was found'}")
    raise NoBrowser(
        f"No Chromium was found, and its installation failed ({'; '.join(failures)}).",
        action=f"Install Chromium with the system's package manager, so that one of {', '.join(NAMES)} is on PATH.",
        tried="; ".join(failures),
    )


def _means() -> Iterable[tuple[str, list[list[str]]]]:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        yield "apt", [["apt-get", "update", "-qq"], [*install, "chromium-headless-shell"]]
        yield "apt (the full browser)", [[*install, "chromium"]]
    playwright = [sys.executable, "-m", "playwright", "install", "chromium-headless-shell"]
    yield "Playwright", [playwright]


def _run(command: list[str]) -> str | None:
    """Run a command; returns None if it succeeded, otherwise the end of its output."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = completed(command, INSTALL_WITHIN_S, environment=environment)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return str(failure)
    if done.returncode == 0:
        return None
    return " ".join((done.stdout + done.stderr).split())[-300:] or f"exit code {done.returncode}"


def _downloads(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        for build in sorted(folder.glob("chromium*-*"), reverse=True):
            for candidate in sorted(build.rglob("*")):
                if candidate.name in _DOWNLOADED and candidate.is_file() and os.access(candidate, os.X_OK):
                    yield candidate
