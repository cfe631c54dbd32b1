"""Prints values of a store as columns, if these are known. Leaves out the records that Holdfast writes for itself.

stored                                             printed
w/001…/002…  {"format": 1, "count": {"n": 3}}      window_start  window_end  n
time         {"time": 17…, "open": [[…]]}          left out; `--internals` shows it
row          {"status": "open", "amount": 3}       status  amount, if the store or the table has a model
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.processors.engine.schema.column_values import column_value
from holdfast.processors.engine.schema.types import RESERVED, Column, Moment, ValueSchema
from holdfast.processors.engine.state.own_keys import RESERVED as RESERVED_KEYS
from holdfast.processors.engine.state.time.stream_time import shown
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

if TYPE_CHECKING:
    from holdfast.processors.engine.topology import StoreSpec

#: The text of a column without a value.
NO_VALUE = "-"


def is_internal(store: StoreSpec | None, message_key: object, state_key: str) -> bool:
    """Whether Holdfast wrote a store's record for itself: an index, a stream time, a timer, or data about windows."""
    if message_key == OWN_KEY.decode() or state_key.startswith(RESERVED_KEYS):
        return True
    return store is not None and not store.has_value_at(state_key)


def built_in(store: StoreSpec) -> ValueSchema | None:
    """The columns of a store that a window, a built-in aggregation or a grouped table fills.

    None for values that users set.
    """
    values = _values(store)
    of_users = len(values) != 1 or (store.kind == "key-value" and not values[0].prefixes)
    return None if of_users or not values[0].columns else values[0]


def of_model(store: StoreSpec) -> ValueSchema | None:
    """The columns of a store for whose values the user has given one model with fields; otherwise None."""
    values = _values(store)
    one = len(values) == 1 and values[0].state_key is None and not values[0].prefixes
    return values[0] if one and any(() not in each.paths for each in values[0].columns) else None


def cells(columns: Sequence[Column], state_key: str, value: object) -> list[str]:
    """The texts of a row's columns, read from a stored value and its state key; ``-`` without a value."""
    found = [(each, column_value(each, state_key, value)) for each in columns]
    return [_text(shown(int(str(at))) if isinstance(of.type, Moment) and at is not None else at) for of, at in found]


def columns_for_people(rows: Sequence[Mapping[str, Any]], store: StoreSpec | None) -> list[str]:
    """The columns of a table's rows that are printed by default.

    These are the message key, the state key if users choose state keys, and the typed columns. If a row has no typed
    columns, the JSON of its value is printed, too.
    """
    names = list(rows[0]) if rows else []
    typed = [name for name in names if name.lower() not in RESERVED]
    key = [name for name in ("message_key",) if name in names]
    if store is None or built_in(store) is None:
        key += [name for name in ("state_key",) if name in names]
    untyped = any(all(row[name] is None for name in typed) for row in rows)
    rest = ["json"] if "json" in names and untyped else []
    return [*key, *typed, *rest] or names


def _values(store: StoreSpec | None) -> tuple[ValueSchema, ...]:
    return () if store is None or store.schema is None else store.schema.values


def _text(value: object) -> str:
    if value is None:
        return NO_VALUE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
