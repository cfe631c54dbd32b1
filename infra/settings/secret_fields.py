"""Settings that are secret: which they are, and that no text shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from holdfast.infra.masking import masked_data, secrets_of, secrets_of_url


def _as_text(value: Any) -> Any:
    """A number or boolean of JSON in librdkafka's syntax."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


#: Settings of a library by name.
Properties = dict[str, Annotated[str, BeforeValidator(_as_text)]]


class Concealing(BaseModel):
    """A model that hides secrets: fields with ``repr=False``, and secrets inside URLs of other fields."""

    def secrets(self) -> Iterator[str]:
        """Every secret in the values, also in those of nested models."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Concealing):
                yield from value.secrets()
            elif not field.repr:
                yield from secrets_of(value)
            elif isinstance(value, str) and "://" in value:
                yield from secrets_of_url(value)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """The fields that ``repr`` shows, without secrets."""
        return ((name, masked_data(value)) for name, value in super().__repr_args__())


class Group(Concealing):
    """Settings with a common prefix. Secrets are plain strings, because settings become the environment of programs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
