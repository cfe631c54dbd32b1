"""Spark with Iceberg's extensions can parse the SQL on the documentation pages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.docs.pages import CodeBlock, code_blocks

BLOCKS = [pytest.param(block, id=block.name) for block in code_blocks("sql")]


@pytest.mark.parametrize("block", BLOCKS)
def test_statements_of_a_page_can_be_parsed(spark: Any, block: CodeBlock) -> None:
    statements = [text for text in re.sub(r"--.*", "", block.text).split(";") if text.strip()]
    assert statements
    parser = spark._jsparkSession.sessionState().sqlParser()
    for statement in statements:
        parser.parsePlan(statement)
