"""kill -9 of a worker with a ``FileSource`` on a real broker, while its files grow. Each row is sent once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.killed import Kill, Scenario
from tests.mechanics.tiers import variants

#: Rows of a file when the worker starts, and rows that each file gets at each kill.
FIRST, MORE, FILES = 4_000, 1_500, 3
#: Kills by the number of workers. Each second one loses its disk.
KILLS = {1: 2, 2: 4}


class Files(Scenario):
    head = """
from holdfast.sources import FileSource


def keep(value, state):
    return [value["number"], state.increment("n")]
"""

    @property
    def topology(self) -> str:  # type: ignore[override]
        return f"""
        source = FileSource("files", {str(self.folder / "*.jsonl")!r}, key="key", watch=0.1, batch=300)
        sdf = made.dataframe(made.topic(group + "-in", value_deserializer="json"), source=source)
        sdf.apply(keep, stateful=True, store="kept").to_topic(made.topic(group + "-out"))
        """

    @property
    def folder(self) -> Path:
        return self.killed.paths.home.parent / "input"

    def prepare(self) -> None:
        self.folder.mkdir()
        self.written = 0
        for file in range(FILES):
            self.write(file, FIRST)

    def write(self, file: int, rows: int) -> None:
        with (self.folder / f"{file}.jsonl").open("a") as out:
            for number in range(self.written, self.written + rows):
                out.write(json.dumps({"number": number, "key": f"k{number % 40}"}) + "\n")
        self.written += rows

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        for kill in range(KILLS[len(self.workers)]):
            yield Kill(self.has_more_results(1_500), "rows of the files", loses_disk=kill % 2 == 1, meanwhile=self.grow)

    def grow(self) -> None:
        for file in range(FILES):
            self.write(file, MORE)

    def truth(self) -> dict[str, Counter[Any]]:
        numbers = Counter(range(self.written))
        return {"in": numbers, "out": numbers}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(output, lambda record, value: value["number"] if output == "in" else value[0])

    def check_ended(self) -> None:
        counts = {key: value for (key, name), value in self.stored("kept").items() if name == "n"}
        assert sum(counts.values()) == self.written
        read = {name: each for (_, name), each in self.stored("source-files").items() if name.startswith("file:")}
        sizes = {f"file:{each.name}": each.stat().st_size for each in self.folder.iterdir()}
        assert {name: each["at"] for name, each in read.items()} == sizes


@pytest.mark.parametrize("workers", variants([1, 2]))
def test_kill_9_neither_loses_nor_doubles_a_row_of_a_file(
    stream: Any, worker: Callable[..., Any], workers: int
) -> None:
    Files(stream, worker, workers).live()
