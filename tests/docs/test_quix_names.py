"""The page of Quix Streams names lists every name of the library. Names that are marked as equal exist in Holdfast."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Application, State, StreamingDataFrame, StreamingSeries, Topic
from holdfast.kafka import ConnectionConfig, Consumer, Producer
from holdfast.sinks import BaseSink, BatchingSink, SinkBatch

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "coming-from" / "quix-names.md"
#: The names in the Quix Streams wheel, by class or module.
FACTS = Path(__file__).with_name("quix_names.txt")
CLASSES = {
    "Application: methods": Application,
    **{
        each.__name__: each
        for each in (
            *(StreamingDataFrame, StreamingSeries, State, Topic, Consumer, Producer, ConnectionConfig),
            *(BaseSink, BatchingSink, SinkBatch),
        )
    },
}
CALLS: dict[str, Callable[..., Any]] = {
    "Application: arguments": Application,
    "app.topic: arguments": Application.topic,
    "app.run: arguments": Application.run,
}


def facts() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in FACTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            found[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            found[list(found)[-1]].append(line)
    return found


def told() -> dict[str, dict[str, str]]:
    """Return the words with which the page rates each name, "same", "other" or "not here", by section and name."""
    found: dict[str, dict[str, str]] = {}
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for heading, text in sections:
        found[heading] = {}
        for names, how in re.findall(r"^\| (`.+?`) \| (\w[\w ]*) \|", text, re.MULTILINE):
            for name in re.findall(r"`(\w+)`", names):
                assert name not in found[heading], f"{heading}: {name} stands twice"
                found[heading][name] = how
    return found


def test_every_name_is_on_the_page_and_no_other() -> None:
    assert {section: sorted(names) for section, names in told().items()} == {
        section: sorted(names) for section, names in facts().items()
    }
    assert {how for names in told().values() for how in names.values()} == {"same", "other", "not here"}


def is_there(section: str, name: str) -> bool:
    if section in CLASSES:
        return hasattr(CLASSES[section], name) or name in inspect.signature(CLASSES[section]).parameters
    if section in CALLS:
        return name in inspect.signature(CALLS[section]).parameters
    of_formats = re.fullmatch(r"(Avro|Protobuf)\w+", name)
    root = "holdfast" if section == "quixstreams" else f"holdfast.{section}"
    module = f"{root}.serializers.{of_formats[1].lower()}" if of_formats else root
    return hasattr(importlib.import_module(module), name)


def test_what_is_the_same_is_there() -> None:
    assert [
        (section, name)
        for section, names in told().items()
        for name, how in names.items()
        if how == "same" and not is_there(section, name)
    ] == []


def test_what_is_not_here_is_not() -> None:
    left = {
        (section, name)
        for section, names in told().items()
        for name, how in names.items()
        if how == "not here" and (section in CLASSES or section in CALLS) and is_there(section, name)
    }
    assert left == set()
