"""Writes the generated pages of ``docs/reference``: ``python -m tests.docs.reference`` (``make reference``).

The pages are committed, because most people read them on a code host. ``test_reference.py`` compares them with the
code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.processors.engine.serving.state.openapi import DOCUMENT
from tests.docs.api_pages import PAGES, api_pages
from tests.docs.command_pages import commands_page, daily_page, data_page, groups_page, verbs_page
from tests.docs.error_pages import checks_page, errors_page, operating_errors_page

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "reference"
#: Each generated page with the function that makes it.
MADE: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "commands-daily.md": daily_page,
    "commands-data.md": data_page,
    "commands-groups.md": groups_page,
    "commands-verbs.md": verbs_page,
    "checks.md": checks_page,
    "errors.md": errors_page,
    "errors-operating.md": operating_errors_page,
    "openapi.json": lambda: json.dumps(DOCUMENT, indent=1) + "\n",
    **{page: partial(lambda name: api_pages()[name], page) for page in PAGES},
}
#: Pages in ``docs/reference`` that are written by hand, not generated.
WRITTEN = {"README.md"}


def main() -> int:
    """Write all pages, and print the names of changed pages."""
    for name, make in MADE.items():
        page, text = FOLDER / name, make()
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(f"wrote {page.relative_to(FOLDER.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
