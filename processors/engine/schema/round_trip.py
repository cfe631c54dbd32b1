"""Checks whether instances of a model are unchanged after encoding to JSON and decoding.

For most models, the types alone show that instances are unchanged. The types are not enough for unions, ``Any``,
validators and subclasses. They are also not enough for constraints (for example a maximum) that the changed instance
may break. In these cases, each value is decoded and compared when it is set.

Invariants:
    - A type is taken as preserved only if all of its parts are known to be preserved. Values of any other type are
      decoded and compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from typing import Any

import pydantic

from holdfast.processors.engine.schema.types import SchemaInvalid

#: Maps a core type of pydantic to its type in JSON. Values of these types are preserved if the type has no constraints.
_JSON_OF = {
    **dict.fromkeys(("str", "date", "datetime", "time", "timedelta", "uuid"), "text"),
    **dict.fromkeys(("int", "float"), "number"),
    **{"bool": "bool", "none": "null"},
    **dict.fromkeys(("list", "set", "frozenset", "tuple"), "array"),
    **dict.fromkeys(("model", "dict"), "object"),
}
#: Entries of a core schema of pydantic that are no constraints, and so change no value.
_HARMLESS = {"type", "ref", "metadata", "strict", "microseconds_precision"}
_PARTS = {
    **{kind: {"items_schema"} for kind in ("list", "set", "frozenset")},
    **{"tuple": {"items_schema", "variadic_item_index"}, "dict": {"keys_schema", "values_schema"}},
}
#: Types of dict keys that pydantic reads back unchanged, although JSON has only text keys.
_KEYS = {"str", "int", "uuid", "date"}
_MODEL = {"cls", "config", "custom_init", "root_model", "schema"}
#: Settings of a model that affect neither writing nor reading JSON.
_SETTINGS = {
    *("title", "extra_fields_behavior", "from_attributes", "frozen", "validate_assignment"),
    *("validate_by_name", "validate_by_alias", "populate_by_name"),
}
_FIELD = {"type", "schema", "metadata", "validation_alias", "serialization_alias", "frozen"}
_SECRETS = (pydantic.SecretStr, pydantic.SecretBytes)


class RoundTrip:
    """Decides from a model's type whether JSON preserves its instances.

    Args:
        adapter: The type adapter of the model.

    Raises:
        SchemaInvalid: JSON loses every value of some field.
    """

    def __init__(self, adapter: pydantic.TypeAdapter[Any]) -> None:
        self._definitions: dict[str, Any] = {}
        self._known: set[int | str] = set()
        #: The model's classes. The decoded JSON of an instance of a subclass lacks the subclass's own fields. If one of
        #: these classes has a subclass, each value must therefore be decoded and compared.
        self._classes: list[type] = []
        self._decided = self._comes_back(adapter.core_schema, "the value")
        self._subclasses: tuple[Callable[[], list[type]], ...] = tuple(
            each.__subclasses__ for each in dict.fromkeys(self._classes)
        )

    @property
    def decided(self) -> bool:
        """Whether the type alone shows that JSON preserves every value that pydantic serializes without a warning."""
        if not self._decided:
            return False
        for subclasses in self._subclasses:  # noqa: SIM110 # `any` takes twice the time, for each value that is set
            if subclasses():
                return False
        return True

    def _comes_back(self, schema: Any, where: str) -> bool:
        kind = schema["type"]
        if kind == "definitions":
            self._definitions.update({each["ref"]: each for each in schema["definitions"]})
            return self._comes_back(schema["schema"], where)
        if kind == "definition-ref":
            ref = schema["schema_ref"]
            if ref in self._known:
                return True
            self._known.add(ref)
            return ref in self._definitions and self._comes_back(self._definitions[ref], where)
        if "serialization" in schema:  # A serializer may change a value, so each value is compared when it is set.
            return False
        if kind == "default":
            return set(schema) <= {"type", "schema", "default", "default_factory", "metadata"} and self._comes_back(
                schema["schema"], where
            )
        if kind == "nullable":
            return self._comes_back(schema["schema"], where)
        if kind == "json":
            raise _lost(where, "is of type `Json`: what it parses is written, and is no text of JSON to read again")
        if _is_secret(schema):
            raise _lost(where, "is a secret: it is written as asterisks", "Store secrets outside of Kafka and state.")
        if kind == "model":
            return self._of_model(schema, where)
        if kind in ("union", "tagged-union"):
            return self._of_union(schema, where)
        return self._of_plain(kind, schema, where)

    def _of_plain(self, kind: str, schema: Any, where: str) -> bool:
        parts = _PARTS.get(kind, set())
        below = [schema[part] for part in sorted(parts) if part in schema and part.endswith("schema")]
        inner = [each for part in below for each in (part if isinstance(part, list) else [part])]
        # Every part is visited, because any part may raise SchemaInvalid.
        whole = [self._comes_back(each, f"{where}[]") for each in inner]
        if kind == "enum":
            return not set(schema) - _HARMLESS - {"cls", "members", "sub_type"} and _are_apart(schema["members"])
        if kind == "literal":
            return all(type(each) in (str, int, bool, type(None)) for each in schema["expected"])
        if kind == "dict" and schema.get("keys_schema", {"type": "str"})["type"] not in _KEYS:
            return False
        return kind in _JSON_OF and set(schema) <= _HARMLESS | parts and bool(inner or not parts) and all(whole)

    def _of_model(self, schema: Any, where: str) -> bool:
        self._classes.append(schema["cls"])
        config, fields = schema.get("config", {}), schema["schema"]
        if fields["type"] != "model-fields":
            return self._comes_back(fields, where) and set(schema) <= _HARMLESS | _MODEL
        name = schema["cls"].__name__
        _check_computed(name, fields, config)
        written = {_written(each, field) for each, field in fields["fields"].items()}
        decided = len(written) == len(fields["fields"])
        for each, field in fields["fields"].items():
            path = f"{name}.{each}"
            if field.get("serialization_exclude"):
                raise _lost(path, "has `exclude=True`: it is not written")
            reads, writes = _read(each, field, config), _written(each, field)
            if writes not in reads:
                raise _lost(
                    path,
                    f"is written as {writes!r}, and read as {', '.join(map(repr, reads)) or 'no plain name'}",
                    f"Give it `alias={reads[0]!r}`, or take the alias out."
                    if reads
                    else "Give it `alias=`, or take the alias out.",
                )
            decided &= not written & set(reads[: reads.index(writes)])
            decided &= self._comes_back(field["schema"], path)
            decided &= set(field) <= _FIELD
        settings = set(config) <= _SETTINGS and config.get("extra_fields_behavior") != "allow"
        return decided and settings and not schema.get("custom_init") and set(schema) <= _HARMLESS | _MODEL

    def _of_union(self, schema: Any, where: str) -> bool:
        choices = schema["choices"]
        choices = list(choices.values()) if isinstance(choices, Mapping) else choices
        made = [each[0] if isinstance(each, tuple) else each for each in choices]
        whole = [self._comes_back(each, where) for each in made]
        kinds = [_JSON_OF.get(each["type"]) for each in made]
        apart = None not in kinds and len(set(kinds)) == len(kinds)
        numbers = {each["type"] for each in made} == {"int", "float"}
        return set(schema) <= _HARMLESS | {"choices", "mode"} and all(whole) and (apart or numbers)


def lost_on_the_way(adapter: pydantic.TypeAdapter[Any], value: Any, payload: bytes) -> tuple[str, str] | None:
    """Compares an instance with its decoded JSON. Returns the path and the kind of the first difference; None if equal.

    Raises:
        pydantic.ValidationError: The JSON can't be decoded.
    """
    return difference(value, adapter.validate_json(payload))


def difference(one: Any, other: Any) -> tuple[str, str] | None:
    """Returns the path and the kind of the first difference between two instances; None if they are equal."""
    return next(_differences(one, other, ""), None)


def _differences(one: Any, other: Any, path: str) -> Iterator[tuple[str, str]]:
    if any(isinstance(one, kind) and isinstance(other, kind) for kind in ((int, float), str)) and one == other:
        return
    if type(one) is not type(other):
        yield path or "the value", f"{_shown(one)} comes back as {_shown(other)}"
        return
    if isinstance(one, pydantic.BaseModel) or dataclasses.is_dataclass(one):
        yield from _of_fields(_fields(one), _fields(other), path)
    elif isinstance(one, Mapping):
        if one.keys() != other.keys():
            yield path or "the value", f"the keys {_shown(list(one))} come back as {_shown(list(other))}"
        else:
            yield from _of_fields(one, other, path)
    elif isinstance(one, (list, tuple)) and len(one) == len(other):
        for at, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _differences(mine, theirs, f"{path}.{at}" if path else str(at))
    elif _comparable(one) != _comparable(other):
        yield path or "the value", f"{_shown(one)} comes back as {_shown(other)}"


def _of_fields(one: Mapping[Any, Any], other: Mapping[Any, Any], path: str) -> Iterator[tuple[str, str]]:
    for name, value in one.items():
        yield from _differences(value, other[name], f"{path}.{name}" if path else str(name))


def _fields(made: Any) -> dict[str, Any]:
    if isinstance(made, pydantic.BaseModel):
        held = {name: getattr(made, name, None) for name in type(made).model_fields}
        return held | {"extra fields": dict(made.model_extra)} if made.model_extra else held
    return {each.name: getattr(made, each.name, None) for each in dataclasses.fields(made)}


def _comparable(value: Any) -> Any:
    """Returns a form of a value that can be compared.

    A time is compared by its clock and UTC offset, not by its zone's name.

    NaN is equal to NaN.
    """
    if isinstance(value, (datetime, time)):
        return value.replace(tzinfo=None, fold=0), value.utcoffset()
    if isinstance(value, (float, Decimal)) and value != value:  # the value is NaN, which is not equal to itself
        return "NaN"
    return value


def _shown(value: Any) -> str:
    return f"{repr(value)[:80]} of type {type(value).__name__}"


def _is_secret(schema: Any) -> bool:
    inner = schema["lax_schema"].get("python_schema", {}) if schema["type"] == "lax-or-strict" else {}
    return any(each.get("cls") in _SECRETS for each in inner.get("choices", ()))


def _are_apart(members: Sequence[Any]) -> bool:
    return all(type(each.value) in (str, int) for each in members)


def _check_computed(name: str, fields: Any, config: Mapping[str, Any]) -> None:
    computed = [each["property_name"] for each in fields.get("computed_fields", ())]
    if computed and config.get("extra_fields_behavior") == "forbid":
        raise _lost(
            f"{name}.{computed[0]}",
            'is a computed field: it is written, and `extra="forbid"` refuses to read it',
            'Take `extra="forbid"` out of the model, or make the field a property.',
        )


def _written(name: str, field: Any) -> str:
    return str(field.get("serialization_alias", name))


def _read(name: str, field: Any, config: Mapping[str, Any]) -> list[str]:
    """Returns the names in JSON from which a field is read, in the order of precedence."""
    given = field.get("validation_alias")
    choices = [] if given is None else [given] if isinstance(given, str) else list(given)
    if choices and isinstance(given, list) and not isinstance(given[0], list):
        choices = [given]  # ``given`` is a single alias path, not a list of choices
    plain = [each if isinstance(each, str) else each[0] for each in choices if isinstance(each, str) or len(each) == 1]
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    if config.get("validate_by_alias") is False:
        plain = []
    return [*plain, *([name] if given is None or by_name else [])]


def _lost(where: str, why: str, action: str = "") -> SchemaInvalid:
    return SchemaInvalid(
        f"{where} {why}. A value that is set would not come back.",
        action=action
        or "Give the field a type and a name that are written and read alike; or leave `model` out of "
        "`app.store`, and give it to the step for the columns of the warehouse only.",
        field=where,
    )
