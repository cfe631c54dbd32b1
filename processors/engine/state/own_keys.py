"""The state keys that a store of users' functions keeps for itself; no other module builds or reads them.

State keys that begin with ``RESERVED`` belong to Holdfast: users' functions neither set nor see them.
"""

from __future__ import annotations

#: What the state keys of own records begin with.
RESERVED = "__holdfast/"
RESERVED_BYTES = RESERVED.encode()
