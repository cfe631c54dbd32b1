"""Commands on a real broker print topics, list dead letters, and replay each of them once.

A replayed message has no error headers.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.clients.feeder import Feeder
from holdfast.infra.kafka.records import Record, TopicSpec
from holdfast.infra.kafka.topics.browsing import newest_of
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.json_documents import ANSWERS
from holdfast.processors.lifecycle.plans.facts.dead_letters import replay_group
from holdfast.processors.lifecycle.world import dead_letters as letters

DEFINITION = """
from holdfast import Application
application = Application(consumer_group="{group}", dead_letter_topic="{group}-dead")
application.dataframe(application.topic("{group}-in")).to_topic(application.topic("{group}-out"))
"""


class Shop:
    """A processor that makes odd numbers dead letters, until its function is corrected."""

    def __init__(self, broker: str, group: str, folder: Path) -> None:
        self.broker, self.group, self.folder = broker, group, folder
        self.topics = Topics(broker)

    def run(self, messages: int, *, corrected: bool = False) -> None:
        def check(value: dict[str, int]) -> dict[str, int]:
            if value["n"] % 2 and not corrected:
                raise ValueError(f"{value['n']} is odd\x1b[2J")
            return value

        app = Application(
            self.broker,
            consumer_group=self.group,
            dead_letter_topic=f"{self.group}-dead",
            state_dir=self.folder / "state",
            auto_offset_reset="earliest",
            loglevel=None,
        )
        app.dataframe(app.topic(f"{self.group}-in")).apply(check).to_topic(app.topic(f"{self.group}-out"))
        app.run(count=messages, timeout=60)

    def records(self, name: str) -> list[Record]:
        return [record for _, record in newest_of(self.topics, f"{self.group}-{name}", 1_000)]

    def numbers(self, name: str) -> Counter[int]:
        return Counter(json.loads(record.value or b"")["n"] for record in self.records(name))


@pytest.fixture
def shop(broker: str, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    group = unique("letters")
    module = f"definition_{group.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(DEFINITION.format(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    monkeypatch.setenv("HOLDFAST_PROCESSORS", json.dumps([f"{module}:application"]))
    shop = Shop(broker, group, tmp_path)
    shop.topics.create(TopicSpec(f"{group}-in", 2, 1))
    with Feeder(broker, then="") as feeder:
        for number in range(10):
            feeder.send(
                f"{group}-in",
                b"k%d" % (number % 3),
                json.dumps({"n": number}).encode(),
                1_700_000_000_000 + number,
                headers=[("trace", b"t%d" % number)],
            )
    yield shop
    sys.modules.pop(module, None)


def test_dead_letters_are_listed_and_sent_again_once_although_the_operator_is_killed(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    waiting: Callable[[Callable[[], Any], str], Any],
) -> None:
    group = shop.group
    shop.run(10)
    assert main(["dead-letters", group, "-n", "2"]) == 0
    listed = capfd.readouterr().out
    assert "ValueError: 9 is odd\\x1b[2J" in listed, "nothing of it controls the terminal"
    assert f"{group}-in[" in listed
    assert f"`holdfast dead-letters {group} --replay`" in listed
    assert main(["dead-letters", group, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    ANSWERS["dead-letters"].validate_python(document)
    assert [each["headers"] for each in document["letters"]] == [[["trace", f"t{n}"]] for n in (1, 3, 5, 7, 9)]

    assert main(["dead-letters", group, "--replay"]) == 3
    said = " ".join(capfd.readouterr())
    assert "send 5 dead letters" in said
    assert f"every reader of {group}-in gets the messages again" in said
    assert f"`holdfast dead-letters {group} --replay --yes`" in said

    class Killed(HoldfastError):
        """The error that ends the operator's process after its first transaction."""

    def die(*_: object) -> str:
        raise Killed("killed", action="")

    with monkeypatch.context() as patch:
        patch.setattr(letters, "AT_ONCE", 1)
        patch.setattr(letters, "count_of", die)
        assert main(["dead-letters", group, "--replay", "--yes"]) != 0
    waiting(lambda: shop.numbers("in").total() == 11, "the transaction before the kill is readable")
    assert main(["dead-letters", group, "--replay", "--yes"]) == 0
    once = Counter({n: 1 + n % 2 for n in range(10)})
    waiting(lambda: shop.numbers("in").total() >= once.total(), "the last transaction is readable")
    assert shop.numbers("in") == once, "each message was sent again once"
    again = [each for each in shop.records("in") if json.loads(each.value or b"")["n"] == 7]
    assert [(each.key, each.timestamp_ms, each.headers) for each in again] == [
        (b"k1", 1_700_000_000_007, [("trace", b"t7")])
    ] * 2
    assert shop.records("dead") == []
    assert shop.topics.committed_offsets(replay_group(group)) == {}
    capfd.readouterr()
    assert main(["dead-letters", group, "--replay", "--yes"]) == 0
    assert "No letter is there." in capfd.readouterr().out

    shop.run(3)  # the messages fail again: the error headers of the first failure must not stay in the new dead letters
    (first, *_) = shop.records("dead")
    assert Counter(name for name, _ in first.headers or ()).most_common(1)[0][1] == 1
    shop.run(2, corrected=True)
    assert set(shop.numbers("out")) >= {0, 2, 4, 6, 8}


def test_records_of_a_topic_are_printed_from_a_place_or_a_time_on(
    shop: Shop, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = f"{shop.group}-in"

    def printed(*words: str) -> list[int]:
        assert main(["consume", topic, *words, "--json"]) == 0
        document = json.loads(capfd.readouterr().out)
        ANSWERS["consume"].validate_python(document, strict=True)
        return [json.loads(each["value"])["n"] for each in document["records"]]

    assert printed("-n", "3") == [7, 8, 9]
    assert printed("-n", "3", "--from", "earliest") == [0, 1, 2]
    assert printed("--from", "2023-11-14T22:13:20.006") == [6, 7, 8, 9]
    assert main(["consume", topic, "-n", "1", "--headers"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("2023-11-14T22:13:20.009+00:00 [")
    assert 'k0  {"n": 9}' in out
    assert "    trace: t9" in out
    assert main(["consume", topic, "--from", "yesterday"]) == 64
    assert "expected `earliest`, an offset as 4711" in capfd.readouterr().err
    assert main(["consume", f"{topic}-none"]) == 64
    assert "does not exist" in capfd.readouterr().err
