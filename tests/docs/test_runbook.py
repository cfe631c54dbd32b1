"""Every check that can fail has a section in the runbook."""

import re
from pathlib import Path

from holdfast.assets.factory import IMPORTABLE
from holdfast.infra.settings import load_settings
from holdfast.orchestration.definitions import build_definitions

RUNBOOK = (Path(__file__).resolve().parent.parent.parent / "docs" / "runbook.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S)


def test_each_check_of_the_graph_has_one_section() -> None:
    graph = build_definitions(load_settings()).resolve_asset_graph()
    checks = {key.name for key in graph.asset_check_keys} | {IMPORTABLE}
    sections = [name for name, _ in SECTIONS]
    assert checks - set(sections) == set()
    assert len(sections) == len(set(sections))


def test_each_section_says_what_to_do() -> None:
    assert [name for name, text in SECTIONS if "what to do" not in text.lower()] == []
