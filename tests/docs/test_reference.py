"""The generated pages of ``docs/reference`` are up to date with the code."""

from __future__ import annotations

import pytest

import holdfast
from tests.docs.api_pages import PAGES
from tests.docs.reference import FOLDER, MADE, WRITTEN


@pytest.mark.slow
@pytest.mark.parametrize("page", MADE)
def test_a_page_is_current(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == MADE[page](), "run `make reference`"


def test_the_folder_has_no_other_pages() -> None:
    assert {page.name for page in FOLDER.iterdir()} == MADE.keys() | WRITTEN


def test_each_public_name_is_on_one_page() -> None:
    named = [name for *_, names in PAGES.values() for name in names]
    assert sorted(named) == sorted(holdfast.__all__)
