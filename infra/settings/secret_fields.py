"""Base classes of the settings' models that find secret values, and hide them in texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from holdfast.infra.masking import masked_data, secrets_of, secrets_of_url


def _as_text(value: Any) -> Any:
    """Converts a number or boolean to text, because librdkafka expects text: ``True`` becomes ``true``."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


#: Type of a setting that holds a library's own settings: name -> value as text.
Properties = dict[str, Annotated[str, BeforeValidator(_as_text)]]


class Concealing(BaseModel):
    """A model that hides secrets in its ``repr``: fields with ``repr=False``, and passwords in URLs of other fields."""

    def secrets(self) -> Iterator[str]:
        """Yields every secret value in the fields of this model and of nested models."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Concealing):
                yield from value.secrets()
            elif not field.repr:
                yield from secrets_of(value)
            elif isinstance(value, str) and "://" in value:
                yield from secrets_of_url(value)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """The fields that ``repr`` shows, with secrets masked."""
        return ((name, masked_data(value)) for name, value in super().__repr_args__())


class Group(Concealing):
    """Base class of a group of settings.

    Secrets are plain strings, because settings are passed to other programs as environment variables.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
