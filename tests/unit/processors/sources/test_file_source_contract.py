"""The contract of sources on ``FileSource``, in each format, and planted bugs that the contract must find."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.sources import FileSource, StatefulSource
from holdfast.testing import SourceContract

ROWS = [{"id": str(number), "text": f'line\n"{number}"' if number % 3 == 0 else "ö"} for number in range(11)]


class _Files(SourceContract):
    """Two files, the second with a last row without a line end."""

    ending = ""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.write(tmp_path / f"a{self.ending}", ROWS[:7])
        self.write(tmp_path / f"b{self.ending}", ROWS[7:])

    def write(self, path: Path, rows: Sequence[dict[str, Any]]) -> None:
        raise NotImplementedError

    def source(self) -> StatefulSource:
        return FileSource("files", f"{self.path}/*{self.ending}", key="id", batch=3)

    def expected(self) -> list[tuple[bytes, bytes]]:
        return [
            (row["id"].encode(), json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()) for row in ROWS
        ]


@pytest.mark.slow
class TestCsv(_Files):
    ending = ".csv"

    def write(self, path: Path, rows: Sequence[dict[str, Any]]) -> None:
        quoted = ['{},"{}"'.format(row["id"], row["text"].replace('"', '""')) for row in rows]
        path.write_text("\r\n".join(["id,text", *quoted]), encoding="utf-8-sig")


@pytest.mark.thorough
class TestJsonLines(_Files):
    ending = ".jsonl"

    def write(self, path: Path, rows: Sequence[dict[str, Any]]) -> None:
        path.write_text("\n\n".join(json.dumps(row) for row in rows))


@pytest.mark.thorough
class TestParquet(_Files):
    ending = ".parquet"

    def write(self, path: Path, rows: Sequence[dict[str, Any]]) -> None:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=4)
