"""A sink whose library is not installed names the line that installs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import sinks
from holdfast.infra.installation import ExtraMissing, install_line


@pytest.mark.parametrize(
    ("library", "module", "extra", "make"),
    [
        ("redis", "", "redis", lambda: sinks.RedisSink("redis://127.0.0.1")),
        ("sqlalchemy", "sql_errors", "operate", lambda: sinks.SqlSink("sqlite://", "t")),
        ("pyarrow", "parquet", "spark", lambda: sinks.ParquetSink("files")),
        ("pyiceberg", "iceberg_table", "spark", lambda: sinks.IcebergSink("a.b", {})),
    ],
)
def test_a_missing_library_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, extra: str, make: Callable[[], Any]
) -> None:
    monkeypatch.delitem(sys.modules, f"holdfast.processors.sinks.{module}", raising=False)
    monkeypatch.delattr(sys.modules["holdfast.processors.sinks"], module or "none", raising=False)
    for name in [each for each in sys.modules if each.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ExtraMissing, match=f"The library {library} is not installed") as missing:
        make()
    assert missing.value.action == f"Run `{install_line(extra)}`."
