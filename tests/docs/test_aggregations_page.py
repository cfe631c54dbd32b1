"""The example of the page on aggregations runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from holdfast.processors.engine.dataframe.aggregation import AGGREGATORS

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGE = PROJECT / "docs" / "aggregations.md"


def test_the_example_passes_as_it_stands(tmp_path: Path) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    file = tmp_path / "test_example.py"
    file.write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "HOLDFAST_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_every_aggregator_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [made.__name__ for made in AGGREGATORS.values() if f"`{made.__name__}(" not in text] == []
