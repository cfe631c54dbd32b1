"""Shell completion of processor and store names reads only the file of the registry (Holdfast's database)."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.infra.database.registry import Registry
from holdfast.orchestration.commands import completion

HEAVY = ("confluent_kafka", "sqlalchemy", "alembic", "rocksdict", "dagster", "pyarrow", "pyiceberg", "pyspark")


def deployed(home: Path) -> None:
    home.mkdir()
    registry = Registry(f"sqlite:///{home / 'registry.db'}")
    registry.migrate()
    for name, stores in (("fleet", ["aircraft", "airports"]), ("routes", ["legs"])):
        shape = {"stores": [{"name": store} for store in stores]}
        columns = {"code_version": "v1", "target": "m:app", "folder": None, "shape": shape}
        registry.releases.record(name, "v1", **columns, now=datetime.now(UTC))
    registry.close()


def completed(words: str, home: Path) -> list[str]:
    """The completions that bash gets for these words."""
    program = (
        "import sys; sys.argv[0] = 'holdfast'\n"
        "from holdfast.orchestration.cli import main\n"
        "import atexit\n"
        f"atexit.register(lambda: sys.stderr.write(' '.join(set(sys.modules) & set({HEAVY!r}))))\n"
        "main([])"
    )
    environment = {
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": f"holdfast {words}",
        "COMP_CWORD": str(len(words.split()) + words.endswith(" ")),
        "PATH": "/usr/bin:/bin",
        "HOLDFAST_HOME": str(home),
    }
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert ran.stderr == "", "nothing is told, and no heavy library is loaded"
    return ran.stdout.split()


@pytest.mark.thorough
@pytest.mark.slow
def test_the_shell_completes_processors_and_their_stores(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert completed("query ", home) == [], "nothing is there yet, and nothing is made"
    assert not home.exists()
    deployed(home)
    assert completed("query fl", home) == ["fleet"]
    assert completed("query fleet --store a", home) == ["aircraft", "airports"]
    assert completed("snapshot routes --store ", home) == ["legs"]


def test_a_registry_that_cannot_be_read_completes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    (tmp_path / "registry.db").write_text("no database")
    assert completion.processors("") == []
