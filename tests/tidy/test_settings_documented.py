"""docs/settings.md lists every setting, and no other name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from holdfast.infra.settings import Settings

PROJECT = Path(__file__).resolve().parent.parent.parent


def variables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str | None, object]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from variables(field.annotation, f"{prefix}{name.upper()}__")
        else:
            yield f"{prefix}{name.upper()}", field.description, field.default


SETTINGS = {name: (description, default) for name, description, default in variables(Settings, "HOLDFAST_")}
ROWS = {
    row[0]: row[1]
    for row in re.findall(r"^\| `(HOLDFAST_\w+)` \| (.*?) \|", (PROJECT / "docs/settings.md").read_text(), re.M)
}


def test_the_page_has_exactly_the_settings_that_exist() -> None:
    assert sorted(ROWS) == sorted(SETTINGS)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_a_setting_says_what_it_means(name: str) -> None:
    description, _ = SETTINGS[name]
    assert description
    assert description.endswith((".", ")."))


@pytest.mark.parametrize(
    "name", [name for name, (_, default) in SETTINGS.items() if isinstance(default, int | float | str)]
)
def test_the_default_on_the_page_is_the_default(name: str) -> None:
    default = SETTINGS[name][1]
    shown = str(default).lower() if isinstance(default, bool) else str(default).removesuffix(".0")
    assert ROWS[name] == (f"`{shown}`" if shown else "none")


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "docs/settings.md"])
def test_a_page_names_no_variable_that_does_not_exist(page: str) -> None:
    path = PROJECT / page
    named = set(re.findall(r"HOLDFAST_[A-Z0-9_]+", path.read_text())) if path.exists() else set()
    assert named <= set(SETTINGS) | {"HOLDFAST_TEST_NO_SKIPS"}
