"""Pages of examples show the code of the files, each has a picture, and each file is listed and has a test."""

from __future__ import annotations

import re
from textwrap import indent

from tests.docs.examples.loaded import EXAMPLES
from tests.docs.pages import PROJECT, code_blocks

FILES = sorted(EXAMPLES.glob("*.py"))
PAGES = sorted(page for page in EXAMPLES.glob("*.md") if page.name != "README.md")


def test_each_block_of_a_page_is_a_part_of_a_file() -> None:
    code = [file.read_text(encoding="utf-8") for file in FILES]
    blocks = [block for block in code_blocks("python") if block.page.startswith("docs/examples/")]
    assert len(blocks) > len(PAGES)
    # a method stands at the left margin of the page
    shown = [(block.name, (block.text, indent(block.text, "    "))) for block in blocks]
    assert [name for name, texts in shown if not any(text in file for text in texts for file in code)] == []


def test_each_page_has_a_picture_and_code() -> None:
    assert [page.name for page in PAGES if "```text\n" not in page.read_text(encoding="utf-8")] == []
    shown = {block.page for block in code_blocks("python")}
    assert [page.name for page in PAGES if f"docs/examples/{page.name}" not in shown] == []


def test_the_list_has_each_page_and_each_file() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"]({page.name})" not in text] == []
    assert [file.name for file in FILES if f"`docs/examples/{file.name}`" not in text] == []


def test_each_file_is_run_by_a_test() -> None:
    folders = (PROJECT / "tests" / "docs", PROJECT / "tests" / "kafka")
    tests = "".join(test.read_text(encoding="utf-8") for each in folders for test in each.rglob("test_*.py"))
    named = {*re.findall(r'example\("(\w+)"\)', tests), *re.findall(r'"(\w+)\.py"', tests)}
    assert {file.stem for file in FILES} - named == set()
