"""Lists and opens the files that a source reads, through the library fsspec.

Invariants:
    - A file has the same name after its folder has moved: names are relative to the part of the URL without a pattern.
    - Each listing asks the store. No listing is cached.
    - A local file that its writer has locked exclusively (``flock``) is not opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, cast

from holdfast.infra.masking import masked, shown_url
from holdfast.infra.storage.errors import StorageFailed, StorageUnusable
from holdfast.infra.storage.objects import CHUNK_BYTES, opened_driver, patient

#: A name of fsspec's facts about a file -> what it says. The first of them that a driver gives is the file's stamp.
_STAMPS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "created")
_PATTERN = re.compile(r"[*?\[]")


class InputUnreadable(StorageFailed):
    """A file that a source reads, or the listing of its files, can't be read now. Fields: ``url``, ``file``."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a listing.

    Attributes:
        name: The name of the file, relative to the part of the URL without a pattern.
        size: Its size in bytes.
        stamp: A text that changes with the content: the ETag of an object store, or the time of the last change.
            Empty if the driver has neither.
    """

    name: str
    size: int
    stamp: str


class InputFiles:
    """The files of one URL: a path, or a pattern with ``*``, ``**``, ``?`` or ``[...]``.

    Args:
        url: A path, ``file://...``, ``s3://bucket/...``, or another URL with an fsspec driver.
        options: Options of the driver, for example ``{"key": ..., "secret": ...}``.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.shown = shown_url(url)
        self._url, self._options = url, patient(url, options)

    @property
    def is_pattern(self) -> bool:
        """Whether the URL is a pattern, which may match no file."""
        return _PATTERN.search(self._url) is not None

    def listed(self) -> list[InputFile]:
        """Returns the files that exist now, in the order of their names.

        Raises:
            InputUnreadable: The store does not answer, or refuses the request.
            StorageUnusable: The URL has no driver, or the driver refuses the options.
        """
        files, path = self._driver
        with self._named("list the files", ""):
            if isinstance(files.protocol, tuple) and "file" in files.protocol:
                os.scandir(self._root or ".").close()  # fsspec lists a folder that can't be read as an empty one
            if self.is_pattern:
                found = cast(dict[str, dict[str, Any]], files.glob(path, detail=True))
            else:
                found = {path: files.info(path)} if files.exists(path) else {}
        kinds = {facts.get("type") for facts in found.values()}
        if kinds == {"directory"} and not self.is_pattern:
            raise StorageUnusable(
                f"{self.shown} is a folder; expected a file, or a pattern for the files of the folder.",
                action=f"Write a pattern, for example `{self.shown.rstrip('/')}/*.csv`.",
                url=self.shown,
            )
        cut = len(self._root)
        return sorted(
            (
                InputFile(name[cut:], int(facts.get("size") or 0), _stamp(facts))
                for name, facts in found.items()
                if facts.get("type") != "directory"
            ),
            key=lambda each: each.name,
        )

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file for reading. Errors of the store become InputUnreadable, also while the file is read."""
        files, _ = self._driver
        with self._named(f"read {name}", name):
            file = files.open(self._root + name, "rb", block_size=CHUNK_BYTES, cache_type="readahead")
            with file:
                _share(file)
                yield file

    @cached_property
    def _driver(self) -> tuple[Any, str]:
        """The fsspec driver, and the path or pattern in the driver's syntax."""
        action = "Correct the URL and `storage_options` of the source, or install the driver of fsspec."
        return opened_driver(self._url, self._options, "The files", action)

    @cached_property
    def _root(self) -> str:
        """The part of the path before the first part with a pattern, with its slash."""
        path = self._driver[1]
        found = _PATTERN.search(path)
        return path[: path.rfind("/", 0, found.start() if found else len(path)) + 1]

    @contextlib.contextmanager
    def _named(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            raise self._unreadable(what, name, failure) from failure
        except Exception as failure:
            # Drivers raise classes of their own libraries, which begin with these names.
            if type(failure).__module__.split(".")[0] not in ("botocore", "aiohttp", "s3fs", "gcsfs", "adlfs", "azure"):
                raise
            raise self._unreadable(what, name, failure) from failure

    def _unreadable(self, what: str, name: str, failure: Exception) -> InputUnreadable:
        why = "another process holds an exclusive lock on it" if isinstance(failure, BlockingIOError) else str(failure)
        return InputUnreadable(
            f"A source could not {what} ({self.shown}): {masked(why) or type(failure).__name__}.",
            action="Let the worker read the file: correct its rights, end the lock of its writer, or start its store.",
            url=self.shown,
            file=name,
        )


def _stamp(facts: Mapping[str, Any]) -> str:
    return next((str(facts[name]) for name in _STAMPS if facts.get(name)), "")


def _share(file: Any) -> None:
    """Takes a shared lock on a local file, so that a writer's exclusive lock is respected. Closing the file ends it.

    Raises:
        BlockingIOError: Another process holds an exclusive lock.
    """
    try:
        number = file.fileno()
    except (OSError, AttributeError, ValueError):  # this is no file of this machine
        return
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # the file system has no locks
        return
