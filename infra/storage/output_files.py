"""Writes files to a folder or an object store, and moves them, through the library fsspec.

Invariants:
    - A file that ``write`` has returned for is on the disk, also after a power cut.
    - ``move`` may be called again: a file that was moved before stays where it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.infra.masking import shown_url
from holdfast.infra.storage.errors import ObjectMissing
from holdfast.infra.storage.objects import opened_driver, patient


class OutputFiles:
    """The files below one URL. Errors of the store are raised as OSError, or as the driver raises them.

    Args:
        url: The path of a folder, ``file://...``, ``s3://bucket/prefix``, or another URL with an fsspec driver.
        options: Options of the driver.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.shown = shown_url(url)
        self._url, self._options = url, patient(url, options)

    @cached_property
    def _driver(self) -> tuple[Any, str]:
        action = "Correct the URL of the sink and its `options`, or install the driver."
        files, root = opened_driver(self._url, self._options, "The files", action)
        return files, root.rstrip("/")

    @cached_property
    def _folder(self) -> Path | None:
        """The folder, if the files are in a folder of this machine."""
        protocol = self._driver[0].protocol
        is_folder = "file" in ((protocol,) if isinstance(protocol, str) else protocol)
        return Path(self._driver[1]) if is_folder else None

    def open(self) -> None:
        """Opens the driver, so that a wrong URL is an error at the start."""
        _ = self._driver

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, whole or not at all."""
        if self._folder is None:
            self._driver[0].pipe_file(self._place(name), content)
            return
        place = self._folder / name
        self._make(place.parent)
        part = place.with_name(f".{place.name}.part")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
        _sync(place.parent)

    def move(self, name: str, to: str) -> None:
        """Moves a file. Does nothing if the file is there already.

        Raises:
            ObjectMissing: Neither the file nor its new name exists.
        """
        files = self._driver[0]
        try:
            if self._folder is None:
                files.copy(self._place(name), self._place(to))
                files.rm_file(self._place(name))
                return
            self._make((self._folder / to).parent)
            (self._folder / name).replace(self._folder / to)
            _sync((self._folder / to).parent)
        except FileNotFoundError as missing:
            if files.exists(self._place(to)):
                return
            raise ObjectMissing(
                f"File {name} is in {self.shown} neither under this name nor as {to}.",
                action=f"Put the file back, for example from a copy of {self.shown}.",
                name=name,
            ) from missing

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if it does not exist."""
        try:
            content: bytes = self._driver[0].cat_file(self._place(name))
            return content
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """Returns the names of the files in a folder, without the folder."""
        try:
            found = self._driver[0].ls(self._place(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(re.split(r"[/\\]", each.rstrip("/"))[-1] for each in found)

    def remove(self, name: str) -> None:
        """Removes a file. Does nothing if it does not exist."""
        try:
            self._driver[0].rm_file(self._place(name))
        except FileNotFoundError:
            return

    def _place(self, name: str) -> str:
        return f"{self._driver[1]}/{name}"

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        folder.mkdir(parents=True, exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Writes the entries of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
