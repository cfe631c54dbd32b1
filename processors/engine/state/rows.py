"""State that steps by columns hold as rows; the store knows it by this."""

from __future__ import annotations

from typing import Protocol


class Rows(Protocol):
    """State that is held outside of the overlay between commits; see ``dataframe.columnar.ColumnarAggregation``."""

    #: What the rows of committed values may hold.
    rows_bytes_max: int

    def write_back(self) -> None:
        """Put everything uncommitted into the overlay."""
        ...

    def committed(self) -> None:
        """The overlay is in RocksDB."""
        ...

    def drop(self) -> None:
        """Forget everything uncommitted."""
        ...

    def dirty_bytes(self) -> int:
        """Roughly how much memory the uncommitted part takes in the overlay."""
        ...

    def rows_bytes(self) -> int:
        """Roughly how much memory all of it takes."""
        ...
