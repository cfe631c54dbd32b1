"""``FileSink``, ``ParquetSink`` and ``JsonLinesSink``: exactly-once files in a folder or an object store.

    root/_staged/<task>/<file>    written before the commit; a kill leaves it here, and the next start removes it
    root/<file>                   moved here after the commit; readers see whole files of committed results only
    root/_published/<task>.json   the number of the last commit whose files were moved

Spark, DuckDB, pyarrow and others skip folders whose names begin with ``_``.
"""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.infra.installation import naming_extras
from holdfast.infra.storage.errors import ObjectMissing
from holdfast.infra.storage.output_files import OutputFiles
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sinks.errors import SinkRowsRefused
from holdfast.processors.engine.sinks.sink import SinkBatch, SinkItem
from holdfast.processors.engine.sinks.staging import SinkTask, StagedPart, StagingSink
from holdfast.processors.sinks.patience import Attempts, Patience
from holdfast.processors.sinks.rows import RowOf, record_of

if TYPE_CHECKING:
    import pyarrow as pa

STAGED, PUBLISHED = "_staged", "_published"


def _marker(task: SinkTask) -> str:
    """The file with the number of the last commit of a task whose files were moved."""
    return f"{PUBLISHED}/{task.label}.json"


class FileSink(StagingSink):
    """Base class of sinks that write a file for each partition and commit. A subclass implements ``encode``.

    Readers see each result once, in whole files, whatever is killed. Few large files need rare commits: set
    ``commit_interval`` of the application.

    Args:
        url: A folder, ``s3://bucket/prefix``, or another URL of fsspec. No other sink may use it.
        name: The name of the sink, unique in the application.
        row: A function that makes the columns of a row from a result (``SinkItem``); None means the fields of the
            value. If it returns None, the result is left out.
        metadata: Whether a row gets ``_key``, ``_timestamp``, ``_topic``, ``_partition`` and ``_offset``, too.
        options: Options of the fsspec driver.
        retry: How often to try again while the store does not answer.
    """

    #: The end of the files' names.
    suffix = ""

    def __init__(
        self,
        url: str,
        *,
        name: str = "files",
        row: RowOf | None = None,
        metadata: bool = True,
        options: Mapping[str, Any] | None = None,
        retry: Patience | None = None,
    ) -> None:
        super().__init__(name)
        self._files = OutputFiles(url, options)
        self._row, self._metadata = row, metadata
        self._attempts = Attempts(retry or Patience(), f"The store {self._files.shown}")

    @property
    def connects_to(self) -> ExternalSystem:
        """The folder or URL of the files."""
        return ExternalSystem("files", self._files.shown)

    @abstractmethod
    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        """Returns the content of a file with these rows.

        Raises:
            TypeError: A row does not fit.
            ValueError: A row does not fit.
        """

    def setup(self) -> None:
        """Opens the driver, so that a wrong URL is an error at the start."""
        self._files.open()

    def stage(self, batch: SinkBatch) -> Any:
        """Writes the rows of a batch to a staged file, and returns its name."""
        rows = [(item, record_of(item, batch, self._row, metadata=self._metadata)) for item in batch]
        kept = [(item, row) for item, row in rows if row is not None]
        if not kept:
            return ""
        content = self._encoded(batch, kept)
        label = self.task_of(batch).label
        name = f"{label}-{batch.start_offset:012d}-{uuid.uuid4().hex}{self.suffix}"
        self._reach(lambda: self._files.write(f"{STAGED}/{label}/{name}", content))
        return name

    def _encoded(self, batch: SinkBatch, rows: Sequence[tuple[SinkItem, dict[str, Any]]]) -> bytes:
        try:
            return self.encode([row for _, row in rows])
        except (TypeError, ValueError) as failure:
            refused = self._unfit([row for _, row in rows]) or dict.fromkeys(range(len(rows)), str(failure))
            where = f"{batch.topic}[{batch.partition}] offset"
            told = [
                (rows[at][0], f"The result of {where} {rows[at][0].offset} fits no row of {self._files.shown}: {why}.")
                for at, why in refused.items()
            ]
            raise SinkRowsRefused(
                batch, told, "Give the value the types of the other rows, or the schema."
            ) from failure

    def _unfit(self, rows: Sequence[dict[str, Any]]) -> dict[int, str]:
        """Returns the rows that can't be encoded, by their index, each with a reason."""
        found = {}
        for at, row in enumerate(rows):
            try:
                self.encode([row])
            except (TypeError, ValueError) as failure:
                found[at] = " ".join(str(failure).split())[:300]
        return found

    def publish(self, task: SinkTask, parts: Sequence[StagedPart]) -> None:
        """Moves the files of committed parts to their place."""
        self._reach(lambda: self._publish(task, parts))

    def _publish(self, task: SinkTask, parts: Sequence[StagedPart]) -> None:
        last = self._last_of(task)
        waiting = [part for part in parts if part.sequence > last]
        for part in waiting:
            for name in filter(None, part.content):
                self._files.move(f"{STAGED}/{task.label}/{name}", name)
        if waiting:
            self._files.write(_marker(task), json.dumps({"sequence": waiting[-1].sequence}).encode())

    def published(self, task: SinkTask) -> int:
        """Returns the number of the last commit whose files were moved; 0 if there was none."""
        found: list[int] = []
        self._reach(lambda: found.append(self._last_of(task)))
        return found[0]

    def _last_of(self, task: SinkTask) -> int:
        read = self._files.read(_marker(task))
        return 0 if read is None else int(json.loads(read)["sequence"])

    def recover(self, task: SinkTask, parts: Sequence[StagedPart]) -> None:
        """Publishes committed parts, and removes what former workers have staged for commits that did not happen."""
        super().recover(task, parts)

        def tidy() -> None:
            for name in self._files.names(f"{STAGED}/{task.label}"):
                self._files.remove(f"{STAGED}/{task.label}/{name}")

        self._reach(tidy)

    def _reach(self, call: Any) -> None:
        try:
            call()
        except ObjectMissing:
            raise
        except Exception as failure:
            if isinstance(failure, (PermissionError, TypeError, ValueError)):
                raise
            self._attempts.failed(failure)
        self._attempts.succeeded()


class ParquetSink(FileSink):
    """Writes Parquet files with pyarrow, exactly once.

    Args:
        url: A folder, ``s3://bucket/prefix``, or another URL of fsspec. No other sink may use it.
        name: The name of the sink, unique in the application.
        schema: The columns and their types (``pyarrow.Schema``); None means those of the values in each file.
        compression: The compression of the files, as pyarrow names it.
        row: A function that makes the columns of a row from a result; None means the fields of the value.
        metadata: Whether a row gets ``_key``, ``_timestamp``, ``_topic``, ``_partition`` and ``_offset``, too.
        options: Options of the fsspec driver.
        retry: How often to try again while the store does not answer.

    Raises:
        ExtraMissing: pyarrow is not installed.
    """

    suffix = ".parquet"

    def __init__(  # tidy: allow-wide because these are independent options of one folder
        self,
        url: str,
        *,
        name: str = "parquet",
        schema: pa.Schema | None = None,
        compression: str = "zstd",
        row: RowOf | None = None,
        metadata: bool = True,
        options: Mapping[str, Any] | None = None,
        retry: Patience | None = None,
    ) -> None:
        super().__init__(url, name=name, row=row, metadata=metadata, options=options, retry=retry)
        with naming_extras():
            from holdfast.processors.sinks import parquet

        self._parquet = parquet
        self._schema, self._compression = schema, compression

    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        """Returns a Parquet file with these rows."""
        return self._parquet.encode(self._parquet.table_of(rows, self._schema), self._compression)

    def _unfit(self, rows: Sequence[dict[str, Any]]) -> dict[int, str]:
        return self._parquet.unfit(rows, self._schema)


class JsonLinesSink(FileSink):
    """Writes files with one JSON object a line, exactly once. Its arguments are those of ``FileSink``."""

    suffix = ".jsonl"

    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        """Returns the rows as lines of JSON. Times, decimals and others become text."""
        return b"".join(msgspec.json.encode(row, enc_hook=str) + b"\n" for row in rows)
