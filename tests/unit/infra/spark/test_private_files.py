"""A JVM gets its properties and options in files with mode 0600, which are deleted after the JVM has read them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from holdfast.infra.spark.private_files import java_arguments, private_properties, properties_text


def test_everything_is_in_private_files_that_are_deleted(tmp_path: Path) -> None:
    told = {"spark.x": "1", "spark.driver.extraJavaOptions": "-Dpw=hunter2 -Da='b c'"}
    with private_properties(tmp_path, "driver", told) as properties:
        files = sorted(tmp_path.iterdir())
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
        options = tmp_path / "driver.extraJavaOptions"
        assert properties.read_text() == f"spark.x 1\nspark.driver.extraJavaOptions @{options}\n"
        assert options.read_text() == '"-Dpw=hunter2"\n"-Da=b c"\n'
    assert list(tmp_path.iterdir()) == []


def test_they_are_deleted_after_a_failed_start_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), private_properties(tmp_path, "driver", {"spark.x": "1"}):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_values_are_quoted_as_java_reads_them() -> None:
    assert properties_text({"a:b=c d": " x\\y\nz"}) == "a\\:b\\=c\\ d \\ x\\\\y\\nz\n"
    assert java_arguments("""-Da=b\\\\c "-De=f \\"g\\"" """) == '"-Da=b\\\\c"\n"-De=f \\"g\\""\n'
