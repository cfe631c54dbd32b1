"""Reads, writes and deletes objects in a folder or in an object store, through the library fsspec.

Invariants:
    - An object is complete or absent. In a folder, a file appears by a rename; in S3, an object appears at the end of
      its upload.
    - Every listing asks the store; there is no cache.
    - No name leads outside of the store. A name with an empty part, ``.`` or ``..`` is refused. In a folder, a name is
      also refused if a symbolic link leads outside.
    - A read has a maximum size, whatever the size of the object.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.infra.installation import missing_in
from holdfast.infra.masking import masked, shown_url
from holdfast.infra.storage.errors import ObjectMissing, ObjectOutside, ObjectTooLarge, StorageFailed, StorageUnusable
from holdfast.infra.system.rooted import PathOutside, inside

#: Bytes that one read from the store, or one write to the store, transfers at a time.
CHUNK_BYTES = 4 << 20
#: Maximum size of an object that ``read`` returns, bytes. It is enough for the list of files (manifest) of a checkpoint
#: with 50,000 files.
READ_BYTES_MAX = 16 << 20
#: Timeout of a connection to S3, seconds.
CONNECT_TIMEOUT_S = 5
#: Maximum seconds without a byte during a read from S3.
READ_TIMEOUT_S = 30
#: Maximum number of attempts of one request to S3.
ATTEMPTS = 2
#: Suffix of a file that is still being written, so that it is not listed as an object.
_PART = ".part"


def _check_url(url: str, shown: str) -> None:
    """Refuse a URL without a bucket, such as ``s3:/x``, because fsspec would treat it as a folder."""
    seen = re.match(r"([A-Za-z][A-Za-z0-9+]+):(/*)([^/]*)", url)
    if seen is None or (seen[2] == "//" and seen[3]) or seen[1] == "file":
        return
    raise StorageUnusable(
        f"The checkpoint store {shown} has no bucket: expected {seen[1]}://bucket/prefix, or the path of a folder.",
        action="Correct `HOLDFAST_CHECKPOINTS__URL`.",
        url=shown,
    )


def patient(url: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of an fsspec driver, without a cache of listings, and with limits for the time of a request to S3."""
    given = {"use_listings_cache": False, "skip_instance_cache": True, **(options or {})}
    if url.startswith(("s3://", "s3a://")):
        patience: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S}
        patience |= {"retries": {"max_attempts": ATTEMPTS}}
        given["config_kwargs"] = {**patience, **given.get("config_kwargs", {})}
        given = _without_continue(given)
    return given


def _without_continue(given: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a session of S3's client whose uploads do not wait for the server's word before they send.

    By default, an upload sends ``Expect: 100-continue``. The HTTP client waits for the answer without a timeout, so a
    server that accepts connections and does not answer would stop the caller for ever.
    """
    try:
        from aiobotocore.session import AioSession  # type: ignore[import-untyped]
        from botocore.handlers import add_expect_header  # type: ignore[import-untyped]
    except ImportError:  # the driver's error names the package
        return dict(given)
    if "session" in given:
        return dict(given)
    rest = {name: value for name, value in given.items() if name != "profile"}
    session = AioSession(profile=given.get("profile"))
    session.unregister("before-call.s3", add_expect_header)
    return {**rest, "session": session}


def opened_driver(url: str, options: Mapping[str, Any], what: str, action: str) -> tuple[Any, str]:
    """Opens the fsspec driver of a URL. Returns it with the path, or the pattern, of the URL in the driver's syntax.

    Args:
        url: A path, ``file://...``, ``s3://bucket/...``, or another URL with an fsspec driver.
        options: Options of the driver.
        what: What the URL is for, as the error says it: ``The checkpoint store``, ``The files``.
        action: What the error says to do.

    Raises:
        StorageUnusable: The URL has no driver, or the driver refuses the options.
    """
    import fsspec  # type: ignore[import-untyped]

    try:
        files, path = fsspec.url_to_fs(url, **options)
    except Exception as failure:
        if (missing := missing_in(failure)) is not None:
            raise missing from failure
        shown = shown_url(url)
        raise StorageUnusable(
            f"{what} {shown} can't be used: {_text_of(failure)}.", action=action, url=shown
        ) from failure
    return files, path


class FsspecObjects:
    """The objects in the store at one URL; implements the protocol ``processors.engine.checkpoints.ports.Objects``.

    Args:
        url: The path of a folder, ``file://...``, ``s3://bucket/prefix``, or another URL with an fsspec driver.
        options: Options of the driver, for example ``{"key": ..., "client_kwargs": {"endpoint_url": ...}}``.

    Raises:
        StorageUnusable: The URL has no bucket or no driver, or the driver refuses the options.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.shown = shown_url(url)
        _check_url(url, self.shown)
        self._url, self._given = url, patient(url, options)
        if "://" in url or options:
            # Open the driver now, so that the constructor raises its errors. For the path of a local folder, the driver
            # is opened on first use, because a path needs no check and fsspec imports slowly.
            _ = self._driver
        ignored = sorted(set(options or {}) - {"auto_mkdir"})
        # Options are checked here, because fsspec's driver for folders accepts every option.
        if ignored and self._is_folder:
            raise StorageUnusable(
                f"The checkpoint store {self.shown} is a folder; its options {', '.join(ignored)} have no effect.",
                action="Unset `HOLDFAST_CHECKPOINTS__OPTIONS`, or set `HOLDFAST_CHECKPOINTS__URL` to the object store.",
                url=self.shown,
            )

    @cached_property
    def _driver(self) -> tuple[Any, str]:
        """The fsspec driver, and the path of the store's root in the driver's syntax."""
        action = "Correct `HOLDFAST_CHECKPOINTS__URL` and `__OPTIONS`, or install the driver."
        files, root = opened_driver(self._url, self._given, "The checkpoint store", action)
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
        return b"".join(at_most(name, self.chunks(name), READ_BYTES_MAX))

    def chunks(self, name: str) -> Iterator[bytes]:
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
        for name in names:
            with self._named(f"delete {name}"), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._place(name))
                if self._is_folder:
                    with contextlib.suppress(OSError):  # `rmdir` fails if the folder still has other objects
                        os.rmdir(os.path.dirname(self._place(name)))

    def _create(self, target: str) -> Any:
        size = max(CHUNK_BYTES, 5 << 20)
        if not self._is_folder:
            return self._files.open(target, "wb", block_size=size)
        for last in (False, True):
            self._files.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                return self._files.open(target, "wb", block_size=size)
            # Meanwhile another process deleted the last object of the folder, and the folder itself; try again.
            except FileNotFoundError:
                if last:
                    raise
        return None

    def _forget(self, file: Any, target: str) -> None:
        """Discard a file or upload whose write failed, so that no incomplete object appears."""
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
        """The path of an object in the driver's syntax; raises ObjectOutside for a name that leads outside."""
        why = "" if is_object_name(name) else "expected parts of printable characters, none of them '.' or '..'"
        if not why and self._is_folder:
            try:
                inside(Path(self._root), name)
            except PathOutside as failure:
                why = f"it is {failure.fields['seen']!r}"
        if why:
            raise ObjectOutside(
                f"The name {name!r} leads outside of the checkpoint store {self.shown}: {why}. Nothing was read or "
                "changed.",
                action="Delete the object or the manifest with that name, and find out what wrote it. In a store that "
                "is a folder, replace a link by its folder.",
                url=self.shown,
                object=name,
            )
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ObjectOutside, ObjectTooLarge):
            raise
        except FileNotFoundError as failure:
            raise ObjectMissing(
                f"The checkpoint store {self.shown} could not {what}: there is no such object.",
                action="Nothing to do: a restore that finds no checkpoint replays the changelog.",
                url=self.shown,
            ) from failure
        except Exception as failure:
            raise StorageFailed(
                f"The checkpoint store {self.shown} could not {what}: {_text_of(failure)}.",
                action="Check that the store runs and has room, and that the processor's credentials may read, write, "
                "list and delete. The processor tries again by itself.",
                url=self.shown,
            ) from failure


def is_object_name(name: str) -> bool:
    """Whether a name is valid: printable, without backslash, and without empty parts, ``.`` or ``..``.

    The name of a folder may end with ``/``.
    """
    parts = name.removesuffix("/").split("/")
    return name.isprintable() and "\\" not in name and not {"", ".", ".."} & set(parts)


def at_most(name: str, chunks: Iterable[bytes], bytes_max: int) -> Iterator[bytes]:
    """Yields the chunks of an object; raises an error if they have more than ``bytes_max`` bytes in total.

    Raises:
        ObjectTooLarge: The object is larger; the chunk that exceeds the limit is not yielded.
    """
    seen = 0
    for piece in chunks:
        seen += len(piece)
        if seen > bytes_max:
            raise ObjectTooLarge(
                f"The object {name} has more than {bytes_max:,} bytes; reading stopped there.",
                action="Delete the object, and find out what wrote it: Holdfast writes no such object.",
                object=name,
                limit=bytes_max,
            )
        yield piece


def _text_of(failure: Exception) -> str:
    return f"{type(failure).__name__}: {masked(str(failure))[:200]}".rstrip(".: ")
