"""The produce command sends lines of JSON to a real broker. It sends all lines, or none if one line is invalid."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.partitioners import MURMUR2, PARTITIONERS
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.json_documents import ANSWERS


def held(topics: Topics, topic: str) -> dict[bytes | None, tuple[int, bytes | None]]:
    """For each record key, the partition and value of its record."""
    found: dict[bytes | None, tuple[int, bytes | None]] = {}
    for number, end in topics.end_offsets(topic, committed=True).items():
        for record in read_range(topics.bootstrap, topic, number, 0, end):
            found[record.key] = number, record.value
    return found


def test_lines_are_sent_by_their_keys_or_not_at_all(
    broker: str,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    topic, topics = unique("lines"), Topics(broker)
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(40)) + '{"name": 1}\n')

    assert main(["produce", topic, "-f", str(file), "--key", "id"]) == 64
    assert f"Topic {topic} does not exist" in capfd.readouterr().err
    topics.create(TopicSpec(topic, 3, 1))
    assert main(["produce", topic, "-f", str(file), "--key", "id"]) == 64
    assert "line 41: it has no field `id`" in capfd.readouterr().err
    assert held(topics, topic) == {}, "nothing is sent half"
    assert main(["produce", topic, "-f", str(tmp_path / "nothing"), "--key", "id"]) == 64
    assert "can't be read" in capfd.readouterr().err

    file.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(40)))
    assert main(["produce", topic, "-f", str(file), "--key", "id", "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    ANSWERS["produce"].validate_python(printed, strict=True)
    assert printed["records"] == 40
    found = held(topics, topic)
    assert {key: value for key, (_, value) in found.items()} == {
        str(number).encode(): json.dumps({"id": number}).encode() for number in range(40)
    }
    assert all(PARTITIONERS[MURMUR2](key or b"", 3) == number for key, (number, _) in found.items())

    class Piped:
        buffer = io.BytesIO(b'{"from": "a", "to": "b"}\n')

    monkeypatch.setattr("sys.stdin", Piped)
    assert main(["produce", topic, "-f", "-", "--key", "{from}-{to}"]) == 0
    assert held(topics, topic)[b"a-b"][1] == b'{"from": "a", "to": "b"}'
