"""The format of keys in a task's database, which contains all stores of the task.

Only this module builds these keys.
"""

from __future__ import annotations


def store_prefix(store: str) -> bytes:
    """Returns the prefix of all keys of one store. Raises ValueError unless the store's name has 1 to 255 bytes."""
    name = store.encode()
    if not 1 <= len(name) <= 255:
        raise ValueError(f"a store name has 1 to 255 bytes, not {len(name)}")
    return bytes([len(name)]) + name
