"""Makes typed columns from a pydantic model, or from another type annotation.

``list``, ``set`` and ``tuple`` become arrays, ``dict`` becomes a map. Models, dataclasses, ``msgspec.Struct`` classes
and typed dicts become structs. A ``Decimal`` gets its size from ``max_digits`` and ``decimal_places``. A union becomes
JSON text. ``python_types`` has a table of all other types.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Any

import msgspec
import pydantic

from holdfast.processors.engine.schema.python_types import BY_TYPE, subclass_column
from holdfast.processors.engine.schema.types import (
    ANY_STATE_KEY,
    FLOATING,
    INFER,
    INFERRED,
    TEXT,
    Column,
    ColumnType,
    Entries,
    Items,
    Member,
    Number,
    Record,
    Scalar,
    SchemaInvalid,
    StoreSchema,
    ValueSchema,
    checked,
    column_name,
)

#: The default digits and decimal places of a decimal, and the maximum digits.
DECIMAL_DIGITS, DECIMAL_PLACES, DIGITS_MAX = 38, 18, 38
#: The members of a union that stand for a value that is null, or that JSON leaves out.
_ABSENT = (type(None), msgspec.UnsetType)


def schema_of(model: Any) -> StoreSchema:
    """Returns the typed columns of a store's values.

    Args:
        model: A model, or any annotation, for every value; or a mapping of state keys to models, with ``"*"`` for all
            other state keys; or ``"infer"``.

    Raises:
        SchemaInvalid: The argument is none of these, or a part of the model can't be a column.
    """
    if model == INFER:
        return INFERRED
    if not isinstance(model, Mapping):
        return checked(StoreSchema((_whole(model),)))
    if not model or not all(isinstance(key, str) and key for key in model):
        raise SchemaInvalid(
            f"A store's models are {model!r}, expected at least one state key with its model.",
            action='Write, for example, `model={"open": Trip, "count": int}`.',
        )
    values = []
    for state_key, each in model.items():
        kind, nullable = _kind(each, (), state_key)
        name = "others" if state_key == ANY_STATE_KEY else column_name(state_key)
        column = Column(name, kind, not nullable, ((),), f"value of state key {state_key}")
        values.append(ValueSchema(state_key, (column,), nullable, model=each))
    return checked(StoreSchema(tuple(values)))


def _whole(model: Any) -> ValueSchema:
    """Returns the columns for a model of complete values: one for each field, or one if values are not objects."""
    kind, nullable = _kind(model, (), "the value")
    if not isinstance(kind, Record):
        return ValueSchema(None, (Column("content", kind, not nullable, ((),), "the value"),), nullable, model=model)
    comments = _comments(model)
    columns = tuple(
        Column(
            column_name(each.name),
            each.type,
            each.required and not nullable,
            tuple((source,) for source in each.sources),
            comments.get(each.name, ""),
        )
        for each in kind.members
    )
    return ValueSchema(None, columns, nullable, model=model)


def _comments(model: Any) -> dict[str, str]:
    fields = getattr(model, "model_fields", {})
    return {name: field.description for name, field in fields.items() if field.description}


def _kind(annotation: Any, seen: tuple[Any, ...], where: str, given: tuple[Any, ...] = ()) -> tuple[ColumnType, bool]:
    """Returns the column type of an annotation, and whether the column may be null.

    ``given`` is the metadata of the annotated field.
    """
    if hasattr(annotation, "__supertype__"):
        return _kind(annotation.__supertype__, seen, where, given)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(arguments[0], seen, where, (*given, *arguments[1:]))
    if origin in (typing.Union, types.UnionType):
        kinds = [each for each in arguments if each not in _ABSENT]
        return _union(kinds, seen, where, given), len(kinds) < len(arguments)
    if annotation is None or annotation is type(None):
        return TEXT, True
    if origin is typing.Literal:
        values = [each.value if isinstance(each, enum.Enum) else each for each in arguments if each is not None]
        return _of_values(values), None in arguments
    if origin is not None and isinstance(origin, type):
        return _collection(origin, arguments, seen, where), False
    if annotation in BY_TYPE:
        return BY_TYPE[annotation], annotation in (Any, object)
    if isinstance(annotation, type):
        return _of_class(annotation, seen, where, given), False
    raise _no_column(where, repr(annotation))


def _union(kinds: list[Any], seen: tuple[Any, ...], where: str, given: tuple[Any, ...]) -> ColumnType:
    if len(kinds) == 1:
        return _kind(kinds[0], seen, where, given)[0]
    return FLOATING if set(kinds) == {int, float} else TEXT


def _of_values(values: list[Any]) -> ColumnType:
    if values and all(type(value) is int for value in values):
        return Scalar("bigint", tuple(values))
    return Scalar("string", tuple(values)) if values and all(type(value) is str for value in values) else TEXT


def _collection(origin: type, arguments: tuple[Any, ...], seen: tuple[Any, ...], where: str) -> ColumnType:
    if issubclass(origin, Mapping):
        return Entries(_kind(arguments[1], seen, where)[0]) if len(arguments) == 2 else TEXT
    if issubclass(origin, tuple):
        kinds = {_kind(each, seen, where)[0] for each in arguments if each is not Ellipsis}
        return Items(kinds.pop() if len(kinds) == 1 else TEXT)
    if issubclass(origin, (list, AbstractSet)) or hasattr(origin, "__iter__"):
        return Items(_kind(arguments[0], seen, where)[0])
    return _of_class(origin, seen, where, ())


def _of_class(annotation: type, seen: tuple[Any, ...], where: str, given: tuple[Any, ...]) -> ColumnType:
    if annotation in seen:  # a recursive model becomes text, because its column would be infinitely deep
        return TEXT
    within = (*seen, annotation)
    if issubclass(annotation, pydantic.RootModel):
        return _kind(annotation.model_fields["root"].annotation, within, where)[0]
    if issubclass(annotation, pydantic.BaseModel):
        config: Mapping[str, Any] = annotation.model_config
        return Record(tuple(_member(name, field, config, within) for name, field in annotation.model_fields.items()))
    if issubclass(annotation, msgspec.Struct):
        return _of_struct(annotation, within)
    if issubclass(annotation, enum.Enum):
        return _of_values([member.value for member in annotation])
    if issubclass(annotation, Decimal):
        return _number(given)
    if dataclasses.is_dataclass(annotation):
        needed = {
            field.name
            for field in dataclasses.fields(annotation)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        }
        return _plain(annotation, needed, within)
    if hasattr(annotation, "__required_keys__"):  # the annotation is a TypedDict of typing or typing_extensions
        return _plain(annotation, set(getattr(annotation, "__required_keys__", ())), within)
    kind = subclass_column(annotation)
    if kind is None:
        raise _no_column(where, annotation.__qualname__)
    return kind


def _of_struct(annotation: type[msgspec.Struct], seen: tuple[Any, ...]) -> ColumnType:
    """Returns the columns of a Struct; text if JSON has its fields as a list (``array_like``)."""
    if annotation.__struct_config__.array_like:
        return TEXT
    members = []
    for field in msgspec.structs.fields(annotation):
        kind, nullable = _kind(field.type, seen, field.name)
        members.append(Member(field.name, kind, field.required and not nullable, (field.encode_name,)))
    return Record(tuple(members))


def _no_column(where: str, annotation: str) -> SchemaInvalid:
    return SchemaInvalid(
        f"{where} is {annotation}, which can't be a column; expected a type that JSON can hold.",
        action="Use `Any` to store its JSON text, or a type of the table in docs/warehouse-reading.md.",
        field=where,
    )


def _plain(annotation: type, needed: set[str], seen: tuple[Any, ...]) -> Record:
    members = []
    for name, hint in typing.get_type_hints(annotation, include_extras=True).items():
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) in (typing.Required, typing.NotRequired) else hint
        kind, nullable = _kind(inner, seen, name)
        members.append(Member(name, kind, name in needed and not nullable, _said(annotation, name, inner)))
    return Record(tuple(members))


def _said(annotation: type, name: str, hint: Any) -> tuple[str, ...]:
    """Returns a field's names in JSON, for a dataclass or typed dict: pydantic's aliases, or else the field's name."""
    known = getattr(annotation, "__pydantic_fields__", {}).get(name)
    told = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    field = known or next((each for each in told if isinstance(each, pydantic.fields.FieldInfo)), None)
    config: Mapping[str, Any] = getattr(annotation, "__pydantic_config__", None) or {}
    return (name,) if field is None else _sources(name, field, config)


def _member(name: str, field: Any, config: Mapping[str, Any], seen: tuple[Any, ...]) -> Member:
    kind, nullable = _kind(field.annotation, seen, name, tuple(field.metadata))
    return Member(name, kind, field.is_required() and not nullable, _sources(name, field, config))


def _sources(name: str, field: Any, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names in JSON from which a model reads a field, in the order of precedence.

    Raises:
        SchemaInvalid: The model reads the field only from a path inside another field.
    """
    given = field.validation_alias if field.validation_alias is not None else field.alias
    choices = [] if given is None or config.get("validate_by_alias") is False else getattr(given, "choices", [given])
    paths = [[each] if isinstance(each, str) else list(each.path) for each in choices]
    found = [path[0] for path in paths if len(path) == 1 and isinstance(path[0], str)]
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    if given is None or by_name or config.get("validate_by_alias") is False:
        found.append(name)
    if not found:
        raise SchemaInvalid(
            f"{name} is read from {given!r} only, which can't be a column; expected the name of a field.",
            action="Write `validation_alias=` as a name, or as `AliasChoices` with one.",
            field=name,
        )
    return tuple(dict.fromkeys(found))


def _number(given: tuple[Any, ...]) -> Number:
    said = [part for each in given for part in (each, *getattr(each, "metadata", ()))]
    digits = next((each.max_digits for each in said if getattr(each, "max_digits", None)), None)
    places = next((each.decimal_places for each in said if getattr(each, "decimal_places", None) is not None), None)
    precision = min(digits or DECIMAL_DIGITS, DIGITS_MAX)
    return Number(precision, min(places if places is not None else min(DECIMAL_PLACES, precision // 2), precision))
