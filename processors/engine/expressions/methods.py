"""The methods of a stream for columns of its values: ``sdf["a"]``, ``sdf["a"] = ...``, ``fill``, ``drop``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

from holdfast.infra.schemas.protobuf import is_message_class
from holdfast.processors.engine.expressions.constants import kept_constant
from holdfast.processors.engine.expressions.failures import ColumnInvalid
from holdfast.processors.engine.expressions.results import KeptByResult, ResultAssigned, result_node, taken_out
from holdfast.processors.engine.expressions.series import StreamingSeries, check_constant, has_instances, part_of
from holdfast.processors.engine.expressions.steps import Assigned, Dropped, Filled, KeptWhere, Projection, Renamed
from holdfast.processors.engine.expressions.tree import VALUE, Constant, Expression, Field, HasFields, Item
from holdfast.processors.engine.steps.node import Node

Stream = TypeVar("Stream")


class StreamColumns(Generic[Stream]):
    """The methods of a stream for columns. A column is a field of the values, which must be objects."""

    @overload
    def __getitem__(self, item: str) -> StreamingSeries: ...

    @overload
    def __getitem__(self, item: StreamingSeries | list[str] | StreamColumns[Stream]) -> Stream: ...

    def __getitem__(self: Any, item: Any) -> Any:
        """Returns a column, or a new stream.

        Args:
            item: A name returns the column. A list of names returns a stream whose values have only these columns. An
                expression, or the result of ``sdf.apply``, returns a stream of the messages for which it is true.

        Raises:
            ColumnInvalid: ``item`` has another type, or is a column of another stream.
        """
        if isinstance(item, str):
            return StreamingSeries(self, _column(item, self))
        if isinstance(item, list):
            names = _names(item, "`sdf[[...]]`")
            if not names:
                raise ColumnInvalid(
                    "`sdf[[]]` has no columns; expected at least one name.",
                    action='Write, for example, `sdf[["user", "total"]]`.',
                )
            made = Projection(tuple((name, _column(name, self)) for name in dict.fromkeys(names)))
            return self._then(Node("apply", made))
        if isinstance(item, StreamingSeries):
            if item.frame.source is not self.source:
                raise ColumnInvalid(
                    f"A stream is filtered by `{item.expression.text}`, a column of another stream.",
                    action='Filter a stream by its own columns: `sdf = sdf[sdf["a"] > 1]`.',
                )
            return self._then(Node("filter", KeptWhere(item.expression)))
        if isinstance(item, StreamColumns):
            chain = taken_out(self._tails, item._tails, "`sdf[...]`")  # type: ignore[attr-defined]
            return self._then(result_node("filter", chain, KeptByResult))
        raise ColumnInvalid(
            f"`sdf[...]` got {item!r} of type {type(item).__name__}; expected a column's name, a list of names, or an "
            "expression.",
            action='Write `sdf["a"]`, `sdf[["a", "b"]]` or `sdf[sdf["a"] > 1]`.',
            seen=repr(item)[:80],
        )

    def __setitem__(self: Any, name: str, item: Any) -> None:
        """Assigns an expression, a constant, or the results of ``sdf.apply`` to a column.

        Adds the step to this stream itself.

        Raises:
            ColumnInvalid: The name is not a text, or ``item`` is a column of another stream.
        """
        column, what = _name(name, "`sdf[name] = ...`"), f"`sdf[{name!r}] = ...`"
        _check_objects(self._model, what)
        if isinstance(item, StreamColumns):
            chain = taken_out(self._tails, item._tails, what)  # type: ignore[attr-defined]
            self._in_place(result_node("update", chain, partial(ResultAssigned, name=column)))
            return
        self._in_place(Node("update", Assigned(column, part_of(item, self))))

    def contains(self, keys: str | Sequence[str]) -> StreamingSeries:
        """Returns an expression that is true for messages whose value has a column, or all of several columns.

        Args:
            keys: The name, or a list of names.

        Raises:
            ColumnInvalid: A name is not a text, or the list of names is empty.
        """
        names = _names(keys, "`contains`")
        if not names:
            raise ColumnInvalid(
                "`contains` got no columns; expected at least one name.", action='Write `sdf.contains("a")`.'
            )
        return StreamingSeries(self, HasFields((), tuple(names), has_instances(self)))

    def fill(self: Any, *columns: str, **mapping: Any) -> Stream:
        """Sets columns that are missing or None to a value. Adds the step to this stream itself.

        Args:
            columns: Names of columns that are set to None if they are missing.
            mapping: Names of columns with the constant that replaces a missing value or None.

        Raises:
            ColumnInvalid: No column is given, a name is not a text, or a value is a column instead of a constant.
        """
        _check_objects(self._model, "`fill`")
        values: dict[str, Any] = {**dict.fromkeys(_names(list(columns), "`fill`")), **mapping}
        if not values:
            raise ColumnInvalid("`fill` got no columns.", action='Write, for example, `sdf.fill("a", b=0)`.')
        for name, each in values.items():
            if isinstance(each, (StreamingSeries, StreamColumns)) or callable(each):
                raise ColumnInvalid(
                    f"`fill` got {each!r} for column {name!r}; expected a constant.",
                    action=f'Write `sdf["{name}"] = sdf.apply(function)`.',
                    seen=repr(each)[:80],
                )
            check_constant(each, self, "`fill`")
        made: Stream = self._in_place(
            Node("update", Filled({name: kept_constant(each) for name, each in values.items()}))
        )
        return made

    def drop(self: Any, columns: str | Sequence[str], errors: Literal["ignore", "raise"] = "raise") -> Stream:
        """Removes columns from the value. Adds the step to this stream itself.

        Args:
            columns: A name, or a list of names.
            errors: What happens to a message that lacks a column. ``raise``: the message fails. ``ignore``: the columns
                that exist are removed.

        Raises:
            ColumnInvalid: A name is not a text, or ``errors`` has another value.
        """
        _check_objects(self._model, "`drop`")
        names, ignores = _names(columns, "`drop`"), _ignores(errors, "`drop`")
        made: Stream = self._in_place(Node("update", Dropped(tuple(dict.fromkeys(names)), ignores))) if names else self
        return made

    def rename(self: Any, columns: Mapping[str, str], errors: Literal["ignore", "raise"] = "raise") -> Stream:
        """Renames columns, all at the same time, so that names can be swapped. Adds the step to this stream itself.

        In the value, renamed columns come after all other columns.

        Args:
            columns: Maps present names to new names.
            errors: What happens to a message that lacks a column. ``raise``: the message fails. ``ignore``: the columns
                that exist are renamed.

        Raises:
            ColumnInvalid: A name is not a text, two new names are equal, or ``errors`` has another value.
        """
        if not isinstance(columns, Mapping):
            raise ColumnInvalid(
                f"`rename` got {columns!r} of type {type(columns).__name__}; expected new names by the present ones.",
                action='Write, for example, `sdf.rename({"temp": "temperature"})`.',
                seen=repr(columns)[:80],
            )
        _check_objects(self._model, "`rename`")
        names, ignores = dict(columns), _ignores(errors, "`rename`")
        _names([*names, *names.values()], "`rename`")
        if len(set(names.values())) < len(names):
            raise ColumnInvalid(
                f"`rename` gives two columns the same name: {names!r}.",
                action="Give each column a name of its own.",
                seen=repr(names)[:80],
            )
        made: Stream = self._in_place(Node("update", Renamed(names, ignores))) if names else self
        return made

    def __bool__(self) -> bool:
        raise ColumnInvalid(
            "A stream has no truth value; `and`, `or`, `not` and `if` ask for one.",
            action="Write `&`, `|` and `~` between expressions of columns.",
        )

    def __iter__(self) -> Iterator[Any]:
        raise ColumnInvalid(
            "A stream can't be iterated: its messages come while the application runs.",
            action="Process each message in a function: `sdf.apply(function)`.",
        )

    def __contains__(self, item: Any) -> bool:
        raise ColumnInvalid(
            f"`in` asks now whether a stream has the column {item!r}; each message has its own answer.",
            action=f"Write `sdf.contains({item!r})`.",
        )

    def __delitem__(self, item: Any) -> NoReturn:
        raise ColumnInvalid("`del sdf[...]` is not there.", action=f"Write `sdf.drop({item!r})`.")


def _column(name: str, frame: Any) -> Expression:
    return (Field if has_instances(frame) else Item)((VALUE, Constant((), name)))


def _check_objects(model: Any, what: str) -> None:
    """Raises ColumnInvalid if the values are instances of a model, because only the fields of dicts can be changed."""
    if model is not None:
        raise ColumnInvalid(
            f"{what} would change a {model.__name__}; columns can be set, filled, renamed and dropped in objects only.",
            action=f"Make objects first: `sdf = sdf.apply({_maker_of_objects(model)})`. Or keep the fields that you "
            'need: `sdf = sdf[["a", "b"]]`.',
            seen=model.__name__,
        )


def _maker_of_objects(model: Any) -> str:
    """Returns the code of a function that converts an instance of ``model`` to a dict."""
    if is_message_class(model):
        return "lambda message: google.protobuf.json_format.MessageToDict(message, preserving_proto_field_name=True)"
    if hasattr(model, "model_dump"):
        return 'lambda message: message.model_dump(mode="json")'
    return "dataclasses.asdict" if is_dataclass(model) else "msgspec.to_builtins"


def _names(given: Any, what: str) -> list[str]:
    """Returns a list of column names from one name or from several; raises ColumnInvalid if one is not a text."""
    several = [given] if isinstance(given, str) or not isinstance(given, Sequence) else [*given]
    return [_name(each, what) for each in several]


def _name(given: Any, what: str) -> str:
    if isinstance(given, str):
        return given
    raise ColumnInvalid(
        f"{what} got {given!r} of type {type(given).__name__}; expected a column's name.",
        action="Write the name as a text.",
        seen=repr(given)[:80],
    )


def _ignores(errors: Any, what: str) -> bool:
    if errors in ("ignore", "raise"):
        return bool(errors == "ignore")
    raise ColumnInvalid(
        f"`errors` of {what} is {errors!r}; expected `raise` or `ignore`.",
        action="Correct it, or leave it out.",
        seen=repr(errors)[:80],
    )
