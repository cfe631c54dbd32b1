"""An exchange replaces the keys and values of a store by others.

The result of the command names the commands that restore the former keys and values.
"""

from __future__ import annotations

import re

from holdfast.processors.lifecycle.plans.requests import Keys
from holdfast.processors.lifecycle.rebuild.exchange import Exchange


def answer(**more: object) -> dict[str, object]:
    return {"set": 2, "deleted": 1, "same": 4, **more}


def test_each_exported_file_has_its_ready_command_oldest_first() -> None:
    made = Exchange("shop", keep=True, export=Keys(("a",)))
    made.add(answer(before=["/exports/first.jsonl"], export={"path": "/exports/my second.jsonl"}))
    made.add(answer(before=["/exports/first.jsonl"]))
    said = made.said("seen", "the file in its keys")
    assert said.startswith("seen is equal to the file in its keys: 4 entries differed")
    assert re.findall("`([^`]+)`", said) == [
        "holdfast restore shop --from-file /exports/first.jsonl --yes",
        "holdfast restore shop --from-file '/exports/my second.jsonl' --yes",
    ]


def test_an_exchange_without_a_file_names_no_command() -> None:
    made = Exchange("shop")
    made.add(answer())
    assert "Undo" not in made.said("seen", "the shadow's")
