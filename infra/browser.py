"""Finds a Chromium for the tests of the UI, and installs one where there is none.

Invariants:
    - What is installed already is used as it is.
    - What is installed, and by which means, is said before it is done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from holdfast.infra.errors import HoldfastError

#: Names under which systems know it; the small headless build first.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Installing one may take so long.
INSTALL_WITHIN_S = 900.0
# Playwright's own downloads, by the folders that it keeps on Linux and macOS.
_DOWNLOADS = ("~/.cache/ms-playwright", "~/Library/Caches/ms-playwright")
_DOWNLOADED = ("chrome-headless-shell", "headless_shell", "chrome", "Chromium")


class NoBrowser(HoldfastError):
    """There is no Chromium, and none of the means to install one worked."""


def find_browser(environment: Mapping[str, str] | None = None) -> Path | None:
    """An installed Chromium: on ``PATH``, else among Playwright's own downloads."""
    environment = os.environ if environment is None else environment
    for name in NAMES:
        found = shutil.which(name, path=environment.get("PATH", ""))
        if found:
            return Path(found)
    chosen = environment.get("PLAYWRIGHT_BROWSERS_PATH")
    folders = [Path(chosen)] if chosen else [Path(folder).expanduser() for folder in _DOWNLOADS]
    return next(iter(_downloads(folders)), None)


def find_or_install_browser(say: Callable[[str], None]) -> Path:
    """An installed Chromium, installed now if there was none: by apt as root, else by Playwright.

    Raises:
        NoBrowser: Neither means worked; names what each said.
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
        failures.append(f"{means}: {failure or 'ended well, yet there is no Chromium'}")
    raise NoBrowser(
        f"There is no Chromium on this machine, and installing one failed ({'; '.join(failures)}).",
        action=f"Install Chromium by your system's means, so that one of {', '.join(NAMES)} is on PATH.",
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
    """What a command said when it failed; None when it did its work."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=INSTALL_WITHIN_S,
            env=environment,
            check=False,
        )
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
