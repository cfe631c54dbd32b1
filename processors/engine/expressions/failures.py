"""The errors of column expressions.

Each error names the part of a message's value that did not fit, and the expected form.

The generated loop only catches Python's exception, which does not name the part. To find the part, the expression is
computed again, part by part, until a part fails. User functions are not called again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.processors.engine.expressions.tree import (
    VALUE,
    Call,
    Constant,
    Expression,
    Failed,
    HasFields,
    Item,
    Logical,
    Slice,
)
from holdfast.processors.engine.formats.typed import field_names, is_object

#: Maximum number of a value's fields that an error text lists.
_LISTED_MAX = 12
#: Stands for the result of a user's function during the search for the cause, because the function is not called again.
_UNKNOWN = object()


class ColumnInvalid(BadConfiguration, TypeError):
    """The declaration of a column expression is invalid."""


class ColumnMissing(HoldfastError):
    """A message's value lacks a column, a field or an item that an expression reads."""


class ColumnUnfit(HoldfastError):
    """A message's value has the wrong type for a column expression."""


class _Found(Exception):
    """Raised for the first part of an expression that fails, with the values of its operands and Python's error."""

    def __init__(self, part: Expression, operands: Sequence[Any], error: BaseException) -> None:
        super().__init__()
        self.part, self.operands, self.error = part, operands, error


def failure_in(expression: Expression, value: Any, step: str) -> HoldfastError | None:
    """Returns the error for the first part of the expression that fails with this value.

    The search does not call user functions, so it skips all parts that need the result of such a call. Returns None if
    none of the other parts fails.
    """
    try:
        _probed(expression, value)
    except _Found as found:
        return _told(found, value, step)
    return None


def not_an_object(value: Any, step: str) -> HoldfastError:
    """Returns the error for a value that is not an object and therefore has no columns."""
    return ColumnUnfit(
        f"`{step}` got a value of type {type(value).__name__}; expected an object with columns.",
        action=_only_objects(value),
        step=step,
        seen=type(value).__name__,
    )


def missing(name: str, value: Any, step: str) -> HoldfastError:
    """Returns the error for a column that the message's value lacks."""
    return ColumnMissing(
        f"`{step}` found no column {name!r} in the message's value, which has {_listed(value)}.",
        action=f'Write `sdf.fill("{name}")` before it for a default, or keep the messages that have the column: '
        f'`sdf = sdf[sdf.contains("{name}")]`.',
        step=step,
        column=name,
    )


def unfit(error: BaseException, step: str) -> HoldfastError:
    """Returns the error for a failed step, with the text of Python's exception."""
    return ColumnUnfit(
        f"`{step}` can't be computed: {error}; expected values that fit the expression.",
        action="Keep the messages that fit by a filter before it, or compute the column by `.apply(function)`.",
        step=step,
    )


def _probed(part: Expression, value: Any) -> Any:
    if isinstance(part, Logical):
        left = _probed(part.parts[0], value)
        if left is _UNKNOWN:
            return left
        return _probed(part.parts[1], value) if part.decides(left) else left
    operands = [_probed(each, value) for each in part.parts]
    if isinstance(part, Call) or any(each is _UNKNOWN for each in operands):
        return _UNKNOWN
    try:
        return part.checked(value, operands)
    except Failed as failed:
        raise _Found(part, operands, failed.error) from failed.error


def _told(found: _Found, value: Any, step: str) -> HoldfastError:
    part, operands, error = found.part, found.operands, found.error
    if isinstance(part, HasFields):
        return not_an_object(value, step)
    if isinstance(part, (Item, Slice)):
        return _not_read(part, operands, error, step)
    shown = [
        f"`{each.text}` is of type {type(at).__name__}"
        for each, at in zip(part.parts, operands, strict=True)
        if not isinstance(each, Constant)
    ]
    return ColumnUnfit(
        f"`{part.text}` of `{step}` can't be computed: {error}. {' and '.join(shown)}; expected types that fit.",
        action="Keep the messages that fit by a filter before it, or compute the column by `.apply(function)`.",
        step=step,
        path=part.text,
    )


def _not_read(part: Expression, operands: Sequence[Any], error: BaseException, step: str) -> HoldfastError:
    whole, key = operands[0], operands[1] if len(operands) > 1 else None
    if isinstance(error, (KeyError, AttributeError)) and is_object(whole):
        if part.parts[0] is VALUE:
            return missing(str(key), whole, step)
        return ColumnMissing(
            f"`{step}` found no field {key!r} in `{part.parts[0].text}`, which has {_listed(whole)}.",
            action="Keep the messages that have the field, by a filter before it; or read the field by "
            f"`{part.parts[0].text}.apply(lambda part: part.get(...))`.",
            step=step,
            path=part.text,
        )
    if isinstance(error, IndexError):
        return ColumnMissing(
            f"`{step}` found no item {key!r} in `{part.parts[0].text}`, which has {len(whole)}.",
            action="Keep the messages that have the item, by a filter before it.",
            step=step,
            path=part.text,
        )
    if part.parts[0] is VALUE:
        return ColumnUnfit(
            f"`{part.text}` of `{step}` got a value of type {type(whole).__name__}; expected an object with columns.",
            action=_only_objects(whole),
            step=step,
            path=part.text,
            seen=type(whole).__name__,
        )
    wanted = "an object" if isinstance(key, str) else "a list"
    return ColumnUnfit(
        f"`{part.text}` of `{step}` can't be read: `{part.parts[0].text}` is of type {type(whole).__name__}; expected "
        f"{wanted}.",
        action="Keep the messages that fit by a filter before it, or compute the column by `.apply(function)`.",
        step=step,
        path=part.text,
        seen=type(whole).__name__,
    )


def _only_objects(value: Any) -> str:
    if value is not None and is_object(value):
        return (
            "Make an object of the instance first, for example by `sdf = sdf.apply(dataclasses.asdict)`, "
            "`msgspec.to_builtins` or `Model.model_dump`."
        )
    kept = "value is not None" if value is None else "isinstance(value, dict)"
    return f"Keep the messages whose value is an object: `sdf = sdf.filter(lambda value: {kept})`."


def _listed(value: Any) -> str:
    known = list(value) if isinstance(value, dict) else sorted(field_names(type(value)))
    names = [repr(each) for each in known[:_LISTED_MAX]]
    more = f" and {len(known) - _LISTED_MAX} more" if len(known) > _LISTED_MAX else ""
    return ", ".join(names) + more if names else "no fields"
