"""The example of docs/testing.md is a test that passes."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def test_the_example_of_the_testing_page_passes():
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    names: dict = {"__name__": "example"}
    exec(compile(example, str(PAGE), "exec"), names)
    tests = [name for name in names if name.startswith("test_")]
    assert tests == ["test_totals_survive_a_restart_and_a_broken_order_is_put_aside"]
    names[tests[0]]()
