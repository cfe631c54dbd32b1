"""The JVM of a real Spark records a class data archive. The next JVM uses the archive.

Tested over Spark Connect and in the same process.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.settings.groups import SparkSettings
from holdfast.infra.spark.class_recording import ClassesNotArchived, record_classes

#: Starts Spark in this process, and prints the files that its JVM has mapped.
PROGRAM = """
import sys
from pathlib import Path

from holdfast.infra.settings import load_settings
from holdfast.infra.settings.groups import SparkSettings
from holdfast.infra.spark.session import spark_session, stop_spark

home, cache = map(Path, sys.argv[1:])
settings = load_settings(home=home).model_copy(update={"cache": cache, "spark": SparkSettings()})
session = spark_session(settings, app_name="with an archive")
try:
    assert session.range(3).count() == 3
    print(Path(f"/proc/{session.sparkContext._gateway.proc.pid}/maps").read_text())
finally:
    stop_spark(session)
"""


def test_a_cluster_has_no_archive() -> None:
    settings = load_settings(spark={"master": "yarn"})
    with pytest.raises(ClassesNotArchived, match="Spark runs on yarn"):
        record_classes(settings)


@pytest.mark.thorough
def test_a_spark_starts_with_the_archive_that_another_made(tmp_path: Path) -> None:
    shared = load_settings(home=tmp_path / "home")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "jars").symlink_to(shared.cache / "jars")
    settings = shared.model_copy(update={"cache": cache, "spark": SparkSettings()})
    file = record_classes(settings)
    assert file.is_relative_to(cache)
    assert record_classes(settings) == file, "the second call finds it"
    # A process has one JVM, which another test of this process may have started without the archive.
    started = [sys.executable, "-c", PROGRAM, str(tmp_path / "home"), str(cache)]
    mapped = subprocess.run(started, capture_output=True, text=True, check=True).stdout
    assert str(file) in mapped
