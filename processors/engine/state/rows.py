"""The port through which a store sees columnar state."""

from __future__ import annotations

from typing import Protocol


class Rows(Protocol):
    """Columnar state, held outside of the store's overlay between commits by ``ColumnarAggregation``."""

    #: The memory limit of rows with committed values, in bytes.
    rows_bytes_max: int

    def write_back(self) -> None:
        """Writes all uncommitted rows into the overlay."""

    def committed(self) -> None:
        """Called after a commit: the overlay is in the database."""

    def drop(self) -> None:
        """Forgets all uncommitted rows."""

    def dirty_bytes(self) -> int:
        """An estimate of the memory that the uncommitted rows will take in the overlay."""

    def rows_bytes(self) -> int:
        """An estimate of the memory of all rows."""
