"""``docs/.site/hooks.py`` turns links between files of the repository into links of the docs site."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.docs.pages import PROJECT

KNOWN = {"verbs.md", "decisions/README.md", "decisions/leases.md", "images/a.png", "project/architecture.md"}


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", PROJECT / "docs" / ".site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("path", "source", "written", "wanted"),
    [
        ("docs/decisions/leases.md", "decisions/leases.md", "[v](../verbs.md#stop)", "[v](../verbs.md#stop)"),
        ("docs/verbs.md", "verbs.md", "[a](../ARCHITECTURE.md#glossary)", "[a](project/architecture.md#glossary)"),
        ("ARCHITECTURE.md", "project/architecture.md", "[d](docs/decisions/)", "[d](docs/decisions/)"),
        ("ARCHITECTURE.md", "project/architecture.md", "[v](docs/verbs.md)", "[v](../verbs.md)"),
        ("ARCHITECTURE.md", "project/architecture.md", "![p](docs/images/a.png)", "![p](../images/a.png)"),
        ("docs/verbs.md", "verbs.md", "[`Makefile`](../Makefile)", "`Makefile`"),
        ("docs/verbs.md", "verbs.md", "[n](nowhere.md)", "[n](nowhere.md)"),
        ("docs/verbs.md", "verbs.md", "[h](#stop), [e](https://example.com/x.md)", None),
        ("docs/verbs.md", "verbs.md", "`[a](../ARCHITECTURE.md)`", None),
        ("docs/verbs.md", "verbs.md", "```\n[a](../ARCHITECTURE.md)\n```", None),
    ],
)
def test_a_link(hooks: ModuleType, path: str, source: str, written: str, wanted: str | None) -> None:
    made = hooks.outside_of_code(
        written, lambda text: hooks._LINK.sub(lambda link: hooks.site_link(link, path, source, KNOWN), text)
    )
    assert made == (wanted or written)
