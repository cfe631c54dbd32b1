"""Reads of a RocksDB checkpoint by somebody who is not its owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from processors.state.fingerprint import Fingerprint, fingerprint_of
from processors.state.rocksdb import StateReader


def iterate_checkpoint(path: Path, store: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield changelog keys and values of one store, in key order.

    Raises:
        StateFailed: The folder is not a checkpoint.
    """
    reader = StateReader(path)
    try:
        yield from reader.items(store)
    finally:
        reader.close()


def fingerprint_checkpoint(path: Path, store: str) -> Fingerprint:
    """The fingerprint of one store in a checkpoint."""
    return fingerprint_of(iterate_checkpoint(path, store))
