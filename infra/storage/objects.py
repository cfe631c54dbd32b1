"""Objects in a folder or in an object store, through fsspec.

Invariants:
    - An object is there whole or not at all: a folder's files appear by renaming, S3's by the end of their upload.
    - What is listed is as of now: nothing is taken from a cache.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from holdfast.infra.storage.errors import ObjectMissing, StorageFailed, StorageUnusable

#: Bytes that are read or written at once.
CHUNK_BYTES = 4 << 20
#: How long S3 may take to be reached and to go on answering, in seconds, before a request counts as failed.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ATTEMPTS = 5, 30, 2
#: A file that is being written; it is no object yet.
_PART = ".part"


def _check_url(url: str, shown: str) -> None:
    """Refuse what looks like an object store and would be a folder, or has no place in it.

    Raises:
        StorageUnusable: It does.
    """
    seen = re.match(r"([A-Za-z][A-Za-z0-9+]+):(/*)([^/]*)", url)
    if seen is None or (seen[2] == "//" and seen[3]) or seen[1] == "file":
        return
    raise StorageUnusable(
        f"The checkpoint store {shown} is no URL: expected {seen[1]}://bucket/prefix, or a folder's path.",
        action="Correct HOLDFAST_CHECKPOINTS__URL.",
        url=shown,
    )


class FsspecObjects:
    """The objects below one URL.

    Args:
        url: A folder's path, ``file://...``, ``s3://bucket/prefix``, or another URL that fsspec knows.
        options: Of fsspec's driver, as ``{"key": ..., "secret": ..., "client_kwargs": {"endpoint_url": ...}}``.

    Raises:
        StorageUnusable: There is no driver for the URL, or it refuses the options.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.shown = re.sub(r"//[^/@]*@", "//", url)
        _check_url(url, self.shown)
        given = {"use_listings_cache": False, "skip_instance_cache": True, **(options or {})}
        if url.startswith(("s3://", "s3a://")):
            patience = {
                "connect_timeout": CONNECT_TIMEOUT_S,
                "read_timeout": READ_TIMEOUT_S,
                "retries": {"max_attempts": ATTEMPTS},
            }
            given["config_kwargs"] = {**patience, **given.get("config_kwargs", {})}
        self._url, self._given = url, given
        if "://" in url or options:
            _ = self._driver  # a folder always works, and is opened when it is used: starts are quicker
        ignored = sorted(set(options or {}) - {"auto_mkdir"})
        if ignored and self._is_folder:  # its driver takes whatever it is given
            raise StorageUnusable(
                f"The checkpoint store {self.shown} is a folder, and {', '.join(ignored)} in its options "
                "would do nothing.",
                action="Unset HOLDFAST_CHECKPOINTS__OPTIONS, or name the object store in HOLDFAST_CHECKPOINTS__URL.",
                url=self.shown,
            )

    @cached_property
    def _driver(self) -> tuple[Any, str]:
        """fsspec's driver, and the root in its words."""
        import fsspec  # type: ignore[import-untyped]

        try:
            files, root = fsspec.url_to_fs(self._url, **self._given)
        except Exception as failure:
            raise StorageUnusable(
                f"The checkpoint store {self.shown} can't be used: {_said(failure)}.",
                action="Correct HOLDFAST_CHECKPOINTS__URL and HOLDFAST_CHECKPOINTS__OPTIONS, or install its driver.",
                url=self.shown,
            ) from failure
        return files, root.rstrip("/")

    @property
    def _files(self) -> Any:
        return self._driver[0]

    @property
    def _root(self) -> str:
        return self._driver[1]

    @cached_property
    def _is_folder(self) -> bool:
        protocol = self._files.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def sizes(self, prefix: str) -> dict[str, int]:
        """The objects whose names begin with a folder's name (it ends with ``/``), and their sizes in bytes.

        Raises:
            StorageFailed: The store does not answer, or refuses.
        """
        where = self._place(prefix).rstrip("/")
        with self._named(f"list {prefix}"):
            try:
                if self._is_folder and not self._files.isdir(where):
                    if not self._files.exists(self._root):
                        self._files.makedirs(self._root, exist_ok=True)
                    return {}
                found = self._files.find(where, detail=True, withdirs=False)
            except FileNotFoundError:
                return {}
        cut = len(self._root) + 1
        return {
            name[cut:]: int(facts["size"] or 0)
            for name, facts in sorted(found.items())
            if not name.endswith(_PART) and facts.get("type") != "directory"
        }

    def read(self, name: str) -> bytes:
        """A small object.

        Raises:
            ObjectMissing: There is none.
            StorageFailed: The store does not answer, or refuses.
        """
        with self._named(f"read {name}"):
            content: bytes = self._files.cat_file(self._place(name))
        return content

    def chunks(self, name: str) -> Iterator[bytes]:
        """An object of any size, piece by piece.

        Raises:
            ObjectMissing: There is none.
            StorageFailed: The store does not answer, or refuses.
        """
        with self._named(f"read {name}"):
            file = self._files.open(self._place(name), "rb", block_size=CHUNK_BYTES, cache_type="readahead")
        with file:
            while True:
                with self._named(f"read {name}"):
                    piece = file.read(CHUNK_BYTES)
                if not piece:
                    return
                yield piece

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Make an object, or replace it.

        Raises:
            StorageFailed: The store does not answer, refuses, or is full; then there is no object of that name.
        """
        place = self._place(name)
        target = f"{place}.{uuid.uuid4().hex[:8]}{_PART}" if self._is_folder else place
        file = None
        try:
            with self._named(f"write {name}"):
                file = self._create(target)
            for piece in chunks:
                with self._named(f"write {name}"):
                    file.write(piece)
            with self._named(f"write {name}"):
                file.close()
                if self._is_folder:
                    os.replace(target, place)
        except BaseException:
            self._forget(file, target)
            raise

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; one that is not there is none to delete.

        Raises:
            StorageFailed: The store does not answer, or refuses.
        """
        for name in names:
            with self._named(f"delete {name}"), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._place(name))
                if self._is_folder:
                    with contextlib.suppress(OSError):  # it has other objects
                        os.rmdir(os.path.dirname(self._place(name)))

    def _create(self, target: str) -> Any:
        size = max(CHUNK_BYTES, 5 << 20)
        if not self._is_folder:
            return self._files.open(target, "wb", block_size=size)
        for last in (False, True):
            self._files.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                return self._files.open(target, "wb", block_size=size)
            except FileNotFoundError:  # somebody deleted the last object of this folder, and with it the folder
                if last:
                    raise
        return None

    def _forget(self, file: Any, target: str) -> None:
        """Let go of a write that failed, without making an object of what there is of it."""
        if file is None:
            return
        with contextlib.suppress(Exception):
            if self._is_folder:
                file.close()
                os.unlink(target)
            else:
                file.discard()
                file.closed = True

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as failure:
            raise ObjectMissing(
                f"The checkpoint store {self.shown} could not {what}: there is no such object.",
                action="Nothing: what can't be restored from a checkpoint is restored from its changelog.",
                url=self.shown,
            ) from failure
        except Exception as failure:
            raise StorageFailed(
                f"The checkpoint store {self.shown} could not {what}: {_said(failure)}.",
                action="Check that the store is up, has room, and that the processor's credentials may read, write, "
                "list and delete there; it is tried again by itself.",
                url=self.shown,
            ) from failure


def _said(failure: Exception) -> str:
    return f"{type(failure).__name__}: {str(failure)[:200]}".rstrip(".: ")
