"""The conversation about a question, on a clock that only the test moves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import QueryWrong, StateAway, VirtualClock
from holdfast.processors.client import known_owners
from holdfast.processors.client.conversation import REQUEST_S, Ask, Known, Look, Pause, about
from holdfast.processors.client.known_owners import KnownOwners
from holdfast.processors.client.questions import Question, about_key
from holdfast.processors.client.replies import Lost, Reply, Settled
from holdfast.processors.client.workers import GivenWorkers
from holdfast.processors.engine.queries.demand import Position
from tests.parts.state_workers import TOKEN, StateWorker, World

URLS = ("http://a:1", "http://b:1")


class Talked:
    """Does the effects of a conversation: replies come from a function, and pauses move the clock."""

    def __init__(self, reply: Callable[[Ask], Reply | Lost], timeout_s: float = 10.0) -> None:
        self.clock = VirtualClock()
        self.known = Known(GivenWorkers(URLS, "a-token"), self.clock, timeout_s)
        self.asked: list[tuple[float, str]] = []
        self._reply, self._began = reply, self.clock.monotonic()

    @property
    def seconds(self) -> float:
        return round(self.clock.monotonic() - self._began, 6)

    def passes(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic() + seconds)

    def about(self, question: Question) -> Settled:
        conversation, heard = about(question, self.known), None
        while True:
            try:
                effect = conversation.send(heard)
            except StopIteration as ended:
                return ended.value
            match effect:
                case Ask():
                    self.asked.append((self.seconds, effect.worker.url))
                    heard = self._reply(effect)
                case Pause(seconds):
                    self.passes(seconds)
                    heard = None
                case Look():
                    heard = None


def key(**demands: Any) -> Question:
    return about_key("keys", "counts", "k1", (), demands)  # type: ignore[arg-type]


def found(sent_at: float, age_s: float = 0.0) -> Reply:
    position = {
        "partition": 0,
        "inputs": {"in": 1},
        "committed_at": 1.0,
        "age_s": age_s,
        "source": "owner",
        "worker": "0",
    }
    return Reply(
        200, {}, json.dumps({"store": "counts", "found": True, "state": {}, "position": position}).encode(), sent_at
    )


def away(retry_after: str | None) -> Reply:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Reply(503, headers, b'{"error": "Task counts-0 is being restored."}', 0.0)


def test_the_client_waits_as_long_as_the_worker_says_and_asks_the_next_one() -> None:
    replies = iter([away("2"), away("3"), found(0.0)])
    talked = Talked(lambda ask: next(replies))
    assert isinstance(talked.about(key()), Settled)
    assert talked.asked == [(0.0, URLS[0]), (2.0, URLS[1]), (5.1, URLS[0])]


def test_workers_that_ask_for_more_time_than_is_left_are_asked_once_each() -> None:
    """One of them may know the owner, although the other one has no hope."""
    replies = iter([away("30"), found(0.0)])
    talked = Talked(lambda ask: next(replies))
    assert isinstance(talked.about(key()), Settled)
    assert talked.asked == [(0.0, URLS[0]), (0.0, URLS[1])]
    talked = Talked(lambda ask: away("30"))
    with pytest.raises(StateAway, match=r"within 10 s\. Task counts-0 is being restored") as error:
        talked.about(key())
    assert (talked.seconds, error.value.retry_after_s) == (0.0, 30)


@pytest.mark.parametrize("retry_after", [None, "soon", "-1", "inf", "nan", "0"])
def test_no_retry_after_makes_a_loop_without_pauses(retry_after: str | None) -> None:
    talked = Talked(lambda ask: away(retry_after))
    with pytest.raises(StateAway):
        talked.about(key())
    assert 5 < talked.seconds <= 10
    assert len(talked.asked) < 40


def test_a_frozen_worker_is_left_for_the_other_one_within_the_timeout() -> None:
    def reply(ask: Ask) -> Reply | Lost:
        if ask.worker.url == URLS[0]:
            talked.passes(ask.timeout_s)
            return Lost("ReadTimeout")
        return found(talked.clock.monotonic())

    talked = Talked(reply)
    talked.about(key(wait=1))
    assert talked.asked == [(0.0, URLS[0]), (REQUEST_S + 1, URLS[1])]
    talked.about(key(wait=1))
    assert talked.asked[2:] == [(REQUEST_S + 1, URLS[1])], "the owner is known now"


def test_no_request_may_last_longer_than_what_is_left() -> None:
    limits: list[float] = []

    def reply(ask: Ask) -> Lost:
        limits.append(ask.timeout_s)
        talked.passes(ask.timeout_s)
        return Lost("ReadTimeout")

    talked = Talked(reply, timeout_s=9.0)
    with pytest.raises(StateAway, match="ReadTimeout"):
        talked.about(key(wait=0))
    assert (limits, talked.seconds) == ([REQUEST_S, 9.0 - REQUEST_S], 9.0)


def test_the_age_of_an_answer_includes_its_way() -> None:
    way_s = iter([2.0, 0.1])

    def reply(ask: Ask) -> Reply:
        sent_at = talked.clock.monotonic()
        talked.passes(next(way_s))
        return found(sent_at, age_s=0.5)

    talked = Talked(reply)
    settled = talked.about(key(max_age=1))
    assert talked.clock.monotonic() - settled.sent_at == pytest.approx(0.1)
    assert len(talked.asked) == 2


def test_an_answer_that_is_always_too_old_is_none() -> None:
    talked = Talked(lambda ask: found(talked.clock.monotonic(), age_s=5.0))
    with pytest.raises(StateAway, match=r"5\.000 s old.*`max_age` is 1 s"):
        talked.about(key(max_age=1))


@pytest.mark.parametrize("location", ["", "ftp://a:1/x", "http://", "/stores/counts/keys/k1", "http://[::1/x"])
def test_a_redirect_to_nowhere_is_no_answer(location: str) -> None:
    moved = Reply(307, {"location": location}, b"{}", 0.0)
    with pytest.raises((StateAway, QueryWrong)):
        Talked(lambda ask: moved).about(key())


def test_workers_that_redirect_in_a_circle_are_asked_to_forward() -> None:
    def reply(ask: Ask) -> Reply:
        if "redirect=true" not in ask.target:
            return found(0.0)
        other = URLS[1 - URLS.index(ask.worker.url)]
        return Reply(307, {"location": f"{other}/stores/counts/keys/k1?partition=0"}, b"{}", 0.0)

    talked = Talked(reply)
    talked.about(key())
    assert len(talked.asked) < 8
    assert talked.seconds == 0.0


def test_a_token_of_encrypted_workers_never_leaves_tls() -> None:
    def reply(ask: Ask) -> Reply:
        assert ask.worker.url.startswith("https://")
        if "redirect=true" in ask.target:
            return Reply(307, {"location": "http://c:1/stores/counts/keys/k1?partition=0"}, b"{}", 0.0)
        return found(0.0)

    talked = Talked(reply)
    talked.known = Known(GivenWorkers(["https://a:1"], "a-token"), talked.clock, 10.0)
    assert isinstance(talked.about(key()), Settled)


class Storm:
    """Workers that die, come back, lose and gain partitions, and refuse, between any two requests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.world = World(self._random.randint(1, 4), grouped=self._random.random() < 0.5)
        self.workers = [StateWorker(self.world, str(slot), listens=False) for slot in range(self._random.randint(1, 3))]
        self.world.owners = {at: self._random.choice(self.workers) for at in range(self.world.partitions)}
        for number in range(10):
            at = None if self.world.grouped else self._random.randrange(self.world.partitions)
            self.world.put(f"k{number}", {"n": number}, at)
        self.talked = Talked(self._reply)
        urls = [each.url for each in self.workers[: self._random.randint(1, len(self.workers))]]
        self.talked.known = Known(GivenWorkers(urls, TOKEN), self.talked.clock, 10.0)

    def _reply(self, ask: Ask) -> Reply | Lost:
        for at in range(self.world.partitions):
            if self._random.random() < 0.1:
                self.world.owners[at] = self._random.choice(self.workers)
        for each in self.workers:
            each.lives = self._random.random() < 0.85
        worker = next(each for each in self.workers if each.url == ask.worker.url)
        sent_at = self.talked.clock.monotonic()
        if not worker.lives or self._random.random() < 0.05:
            return Lost("ConnectError", dropped=self._random.random() < 0.5)
        status, headers, document = self._random.choices(
            [worker.reply(ask.target, f"Bearer {ask.worker.token}"), worker.away("The task moves."), (421, {}, {})],
            [8, 1, 1],
        )[0]
        return Reply(
            status, {name.lower(): text for name, text in headers.items()}, json.dumps(document).encode(), sent_at
        )

    def read(self, name: str) -> dict[str, Any] | None:
        """The answer about a key; None if no worker could answer."""
        try:
            return self.talked.about(about_key("keys", "counts", name, (), {})).document
        except StateAway:
            return None


def test_in_any_trouble_an_answer_is_right_and_absence_is_certain() -> None:
    answered = asked = 0
    for seed in range(25):
        storm = Storm(seed)
        for number in [*range(10), 99] * 3:
            found = storm.read(f"k{number}")
            asked += 1
            if found is not None:
                answered += 1
                assert found["found"] is (number < 10), f"seed {seed}, key {number}"
                assert found.get("state") == ({"n": number} if number < 10 else None), f"seed {seed}, key {number}"
    assert answered > asked * 0.8


def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_owners, "REMEMBERED_MAX", 10)
    owners = KnownOwners()
    for number in range(1000):
        owners.learn(
            Question("", store="s", key=f"k{number}"),
            Position(number, {}, 0.0, 0.0, "owner", f"{number}"),
            "http://a:1",
            None,
        )
        owners.down(f"http://{number}:1", 0.0)
        owners.scattered(f"s{number}")
    sizes = [len(each) for each in vars(owners).values() if isinstance(each, dict)]
    assert sizes == [10] * 5
    assert owners.find("s", "k999") is not None
    assert owners.find("s", "k0") is None
