"""Computes the typed columns of a stored value in Python, so that an audit can compare them with the table's columns.

For a column with a model, pydantic finds the field by the model's core schema, and leaves the JSON value unchanged. The
result therefore depends neither on SQL, nor on the user's functions, nor on the field names that the module ``models``
has derived for SQL. Columns without a model (aggregations, windows, inferred columns) are read by their paths in the
JSON value.

Invariants:
    - A reported difference is always real. If Python cannot read a value reliably in the same way as SQL, the value
      counts as equal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pydantic
from pydantic_core import SchemaValidator, core_schema

from holdfast.processors.engine.schema.types import (
    ANY_STATE_KEY,
    Column,
    ColumnType,
    Entries,
    Held,
    Items,
    Moment,
    Quotient,
    Record,
    StoreSchema,
    ValueSchema,
    column_name,
)
from holdfast.processors.engine.state.own_keys import RESERVED

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = ("model-fields", "typed-dict", "dataclass-args")
#: Settings of a pydantic model that control by which names (field names or aliases) the model reads a field.
_BY_NAME = ("validate_by_alias", "validate_by_name", "populate_by_name")
#: Maps the type of a wrapping pydantic core schema to the key under which it holds the wrapped schema.
_WITHIN = {"json-or-python": "json_schema", "lax-or-strict": "lax_schema", "function-plain": ""}


class ColumnReader:
    """Computes the content of a store's typed columns from stored values."""

    def __init__(self, schema: StoreSchema) -> None:
        self._values = [(each, _ValueReader(each)) for each in schema.values]
        self._named = {each.state_key for each in schema.values}

    def content(self, state_key: str, payload: bytes) -> dict[str, Any] | None:
        """Maps each column to its JSON value, without null columns; None if Python cannot read the value reliably.

        ``payload`` is the stored value as JSON.
        """
        if b"\\ud" in payload.lower():  # a lone surrogate can't be encoded; SQL reads it as `?`
            return None
        try:
            said = _without_nulls(json.loads(payload))
        except (ValueError, RecursionError):
            return None
        reader = next((reader for each, reader in self._values if self._is_of(each, state_key)), None)
        return {} if reader is None or said is None else reader.content(state_key, said)

    def _is_of(self, value: ValueSchema, state_key: str) -> bool:
        if value.prefixes:
            return state_key.startswith(value.prefixes)
        if state_key.startswith(RESERVED):
            return False
        others = value.state_key == ANY_STATE_KEY and state_key not in self._named
        return value.state_key in (None, state_key) or others


class _ValueReader:
    def __init__(self, value: ValueSchema) -> None:
        names = _Names()
        core = _core_of(value.model)
        self._whole = [each for each in value.columns if () in each.paths]
        self._fields = {each.name: each for each in value.columns if () not in each.paths}
        said = {each.name: (each.type, each.paths) for each in self._fields.values()}
        self._objects = SchemaValidator(names.of_fields(said, core))
        self._others = [SchemaValidator(names.of(each.type, core)) for each in self._whole]

    def content(self, state_key: str, said: Any) -> dict[str, Any] | None:
        is_object = isinstance(said, dict) and bool(self._fields)
        try:
            if is_object or not self._whole:
                read = {column_name(name): each for name, each in self._objects.validate_python(said).items()}
            else:
                whole = zip(self._whole, self._others, strict=True)
                read = {each.name: other.validate_python(said) for each, other in whole}
        except pydantic.ValidationError:
            return None
        columns = self._fields.values() if is_object else self._whole
        found = {each.name: _shown(each, read.get(each.name, _part(state_key, each))) for each in columns}
        return {name: each for name, each in found.items() if each is not None}


class _Names:
    """Builds pydantic schemas that find a field by the names that the user's model reads, and do not change values."""

    def __init__(self) -> None:
        self._definitions: dict[str, Any] = {}

    def of(self, kind: ColumnType, core: Any) -> Any:
        within = self._unwrapped(core)[0]
        match kind:
            case Record(members):
                said = {each.name: (each.type, [(source,) for source in each.sources]) for each in members}
                return self.of_fields(said, core)
            case Items(element):
                return core_schema.list_schema(core_schema.nullable_schema(self.of(element, _item(within))))
            case Entries(value):
                inner = self.of(value, within and within.get("values_schema"))
                return core_schema.dict_schema(values_schema=core_schema.nullable_schema(inner))
        return core_schema.any_schema()

    def of_fields(self, said: Mapping[str, tuple[ColumnType, Any]], core: Any) -> Any:
        """Builds the schema of an object with these columns.

        ``said`` maps each column to its type, and to the paths at which a field without a model is found in the value.
        """
        core, config = self._unwrapped(core)
        fields = _fields(core)
        names = {column_name(name): name for name in fields}
        made = {}
        for column, (kind, paths) in said.items():
            name = column if column in fields else names.get(column, column)
            field = fields.get(name)
            inner = core_schema.nullable_schema(self.of(kind, field and field["schema"]))
            alias = [list(path) for path in paths] if field is None else _alias(field)
            made[name] = core_schema.typed_dict_field(inner, required=False, validation_alias=alias)
        by_name: Any = {each: config[each] for each in _BY_NAME if each in config}
        return core_schema.typed_dict_schema(made, config=by_name)

    def _unwrapped(self, core: Any) -> tuple[Any, Mapping[str, Any]]:
        """The innermost schema and its config, without wrappers such as optional, default, function and model."""
        config: Mapping[str, Any] = {}
        while core is not None and core["type"] not in _FIELDS:
            if core["type"] == "definitions":
                self._definitions.update({each["ref"]: each for each in core["definitions"]})
            config = core.get("config", config)
            if core["type"] == "definition-ref":
                core = self._definitions.get(core["schema_ref"])
                continue
            within = core.get(_WITHIN.get(core["type"], "schema"))
            if within is None:
                break
            core = within
        return core, (core or {}).get("config", config)


def _core_of(model: Any) -> Any:
    if model is None:
        return None
    try:
        return pydantic.TypeAdapter(model).core_schema
    except (pydantic.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation):
        return None


def _fields(core: Any) -> dict[str, Any]:
    if core is None or core["type"] not in _FIELDS:
        return {}
    return {each["name"]: each for each in core["fields"]} if core["type"] == "dataclass-args" else core["fields"]


def _alias(field: Any) -> Any:
    """The names (aliases) by which a pydantic model reads a field.

    An alias can also be a path into the value of another field. Such paths are left out, because they name no column.
    """
    alias = field.get("validation_alias")
    if isinstance(alias, list) and all(isinstance(each, list) for each in alias):
        return [each for each in alias if len(each) == 1]
    return alias


def _item(core: Any) -> Any:
    found = core and core.get("items_schema")
    return (found[0] if found else None) if isinstance(found, list) else found


def _without_nulls(value: Any) -> Any:
    """A JSON value without its null members, because SQL treats a null member like a missing member."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _part(state_key: str, column: Column) -> int | None:
    parts = state_key.split("/")
    if column.key_part is None or len(parts) < column.key_part:
        return None
    part = parts[column.key_part - 1]
    return int(part) if part.lstrip("-").isdecimal() else None


def _shown(column: Column, said: Any) -> Any:
    """A stored value as its column shows it: a mean is computed, a time becomes text, other values are unchanged."""
    match column.type:
        case Quotient() if isinstance(said, dict):
            count = said.get("count")
            return said["sum"] / count if count and "sum" in said else None
        case Moment() if isinstance(said, int):
            try:
                return (_EPOCH + timedelta(milliseconds=said)).isoformat()
            except OverflowError:
                return None
        case Held(at, _) if isinstance(said, list):
            return said[at] if at < len(said) else None
    return said


# -- comparing -------------------------------------------------------------------------------------------------------


def is_same(seen: Any, said: Any) -> bool:
    """Whether a column's content in the table (as JSON) equals the stored JSON value.

    Two notations of the same time or number are equal, for example ``1`` and ``1.0``.
    """
    if isinstance(seen, dict) and isinstance(said, dict):
        seen = _without_nulls(seen)
        return seen.keys() == said.keys() and all(is_same(each, said[name]) for name, each in seen.items())
    if isinstance(seen, list) and isinstance(said, list):
        return len(seen) == len(said) and all(map(is_same, seen, said))
    if isinstance(seen, str) and isinstance(said, str):
        return seen == said or _same_time(seen, said) or _same_number(seen, said)
    if isinstance(seen, str):  # A text column shows a stored value that is no text, for example a number, as JSON.
        try:
            return is_same(_without_nulls(json.loads(seen)), said)
        except (ValueError, RecursionError):
            return False
    if isinstance(seen, bool) or isinstance(said, bool):
        return seen is said
    return bool(seen == said) or _same_number(seen, said)


def _same_number(seen: Any, said: Any) -> bool:
    try:
        one, other = float(seen), float(said)
    except (TypeError, ValueError, OverflowError):
        return False
    return one == other or (math.isnan(one) and math.isnan(other))


def _same_time(seen: str, said: str) -> bool:
    """Whether two texts are the same time.

    Also True if Python cannot read the stored text as a time. SQL may still be able to read it, so a difference is not
    certain.
    """
    column = _time(seen)
    if column is None or not (said[:4].isdecimal() and said[4:5] == "-"):
        return False
    stored = _time(said)
    if stored is None:
        return True
    return stored.replace(tzinfo=None) == column.replace(tzinfo=None) or _utc(stored) == _utc(column)


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _utc(time: datetime) -> datetime | None:
    try:
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        return None
