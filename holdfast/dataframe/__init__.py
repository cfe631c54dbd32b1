"""Streams and their columns, under the import path that Quix Streams uses: ``holdfast.dataframe``."""

from __future__ import annotations

from typing import Any

__all__ = ["StreamingDataFrame", "StreamingSeries"]


def __getattr__(name: str) -> Any:
    """Imports a class at its first use, because ``holdfast.dataframe.windows`` needs none of these classes."""
    import holdfast

    if name in __all__:
        return getattr(holdfast, name)
    raise AttributeError(f"module 'holdfast.dataframe' has no attribute {name!r}; it has {', '.join(__all__)}")
