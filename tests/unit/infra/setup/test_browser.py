"""An installed browser is found in each of the places where it may be."""

from __future__ import annotations

from pathlib import Path

from holdfast.infra.setup.browser import find_browser


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_one_on_path_is_found(tmp_path: Path) -> None:
    chromium = executable(tmp_path / "bin" / "chromium")
    assert find_browser({"PATH": str(chromium.parent)}) == chromium


def test_one_that_playwright_downloaded_is_found(tmp_path: Path) -> None:
    shell = executable(tmp_path / "chromium_headless_shell-1200" / "chrome-linux" / "headless_shell")
    assert find_browser({"PATH": "", "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}) == shell


def test_where_there_is_none_none_is_found(tmp_path: Path) -> None:
    assert find_browser({"PATH": "", "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}) is None
