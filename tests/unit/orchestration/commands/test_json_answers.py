"""The comparison of printed JSON finds the schema of the command, whatever arguments follow the command's name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.mechanics.json_answers import compare

ABANDONED = {"apply": 1, "processor": "fleet", "verb": "clear", "stages_done": 2, "told": []}
APPLIED = {"apply": 1, "plan": "abcd", "stages": [], "seconds": 0.5}


@pytest.mark.parametrize(
    ("words", "document"),
    [
        ("apply abandon 1 a reason", ABANDONED),
        ("apply resume 1", APPLIED),
        ("apply clear fleet", APPLIED),
        ("deploy fleet", APPLIED),
        ("version", {"version": "1"}),
    ],
)
def test_a_document_is_compared_with_the_schema_of_its_command(words: str, document: Any) -> None:
    compare(words.split(), document)
    with pytest.raises(ValidationError):
        compare(words.split(), {"of": "another command"})
