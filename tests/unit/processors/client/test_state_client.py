"""``StateClient`` and ``AsyncStateClient`` ask workers on real sockets. Each case runs with both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import AsyncStateClient, QueryWrong, StateAway, StateClient, StateRefused, StoreUnknown
from holdfast.processors.client.errors import NoWorkerAnswers, StateClientWrong
from holdfast.processors.client.questions import ENTRIES_MAX, KEYS_MAX
from holdfast.processors.engine.queries import service
from tests.parts.state_workers import TOKEN, StateWorker, state_workers

METHODS = ("get", "key", "windows", "table", "global_row", "many", "stores")


class Waited:
    """An ``AsyncStateClient`` that is used as if it were a ``StateClient``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncStateClient(*given, **named)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given, **named: self._runner.run(getattr(self._client, name)(*given, **named))

    def keys(self, *given: Any, **named: Any) -> list[Any]:
        async def all_of_them() -> list[Any]:
            return [row async for row in self._client.keys(*given, **named)]

        return self._runner.run(all_of_them())

    def close(self) -> None:
        self._runner.run(self._client.close())

    def end(self) -> None:
        self.close()
        self._runner.close()


def ended(client: Any) -> None:
    client.end() if isinstance(client, Waited) else client.close()


@pytest.fixture(params=[StateClient, Waited], ids=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def opened(workers: list[StateWorker], **options: Any) -> Any:
        client = request.param(urls=[each.url for each in workers], token=TOKEN, **options)
        made.append(client)
        return client

    yield opened
    for client in made:
        ended(client)


@pytest.fixture
def workers() -> Iterator[list[StateWorker]]:
    with state_workers() as made:
        for number in range(20):
            made[0].world.put(f"k{number}", {"n": number})
        yield made


def asked(workers: list[StateWorker]) -> list[int]:
    """The number of requests that each worker got since the last call."""
    counts = [len(each.asked) for each in workers]
    for each in workers:
        each.asked.clear()
    return counts


def test_the_second_query_of_a_key_goes_to_its_owner_on_a_kept_connection(
    workers: list[StateWorker], connect: Callable[..., Any]
) -> None:
    client = connect(workers)
    for number in range(20):
        assert client.get("counts", f"k{number}", "n") == number
    asked(workers)
    for number in range(20):
        answer = client.key("counts", f"k{number}")
        assert (answer.found, answer.state) == (True, {"n": number})
        owner = workers[0].world.owners[answer.position.partition]
        assert asked(workers) == [int(each is owner) for each in workers]
    assert [each.connections for each in workers] == [1, 1]


def test_a_partition_that_moved_is_found_at_its_new_owner(
    workers: list[StateWorker], connect: Callable[..., Any]
) -> None:
    client, world = connect(workers), workers[0].world
    for number in range(20):
        client.get("counts", f"k{number}")
    world.owners = dict.fromkeys(range(world.partitions), workers[1])
    assert [client.get("counts", f"k{number}", "n") for number in range(20)] == list(range(20))
    asked(workers)
    assert [client.get("counts", f"k{number}", "n") for number in range(20)] == list(range(20))
    assert asked(workers) == [0, 20]


@pytest.mark.parametrize("status", [421, 503])
def test_a_worker_that_can_not_answer_is_left_and_its_hint_dropped(
    workers: list[StateWorker], connect: Callable[..., Any], status: int
) -> None:
    client = connect(workers)
    owner = workers[0].world.owners[client.key("counts", "k1").position.partition]
    other = workers[1 - int(owner.slot)]
    asked(workers)
    left = [owner.away("The task is being restored.") if status == 503 else (421, {}, {"error": "not here"})] * 2
    owner.fault = lambda target: left.pop() if left else None
    assert client.get("counts", "k1", "n") == 1
    assert left == []
    assert other.asked


@pytest.mark.parametrize(
    ("reply", "error", "action"),
    [
        ((400, {}, {"error": "`limit` is '0'.", "action": "Send `limit`."}), QueryWrong, "Send `limit`."),
        ((401, {}, {"error": "the token is missing or wrong"}), StateRefused, "HOLDFAST_SERVING__STATE_TOKEN"),
        ((404, {}, {"error": "No store.", "action": "Ask for one of these."}), StoreUnknown, "Ask for one of these."),
        ((404, {}, b"<html>nginx</html>"), StoreUnknown, "Correct `urls`"),
        ((431, {}, {"error": "a request has at most 16384 bytes"}), QueryWrong, "Correct the query."),
    ],
)
def test_what_each_worker_would_refuse_is_asked_once(
    workers: list[StateWorker], connect: Callable[..., Any], reply: Any, error: type[Exception], action: str
) -> None:
    for each in workers:
        each.fault = lambda target: reply
    with pytest.raises(error, match=action):
        connect(workers).get("counts", "k1")
    assert sum(asked(workers)) == 1


def test_a_wrong_token_is_refused_and_appears_in_no_error(workers: list[StateWorker]) -> None:
    with StateClient(urls=[workers[0].url], token="guessed-token-12345") as client:
        with pytest.raises(StateRefused) as refused:
            client.get("counts", "k1")
        assert "guessed-token-12345" not in f"{refused.value} {refused.value.as_dict()} {client._known.workers.known()}"
    with StateClient(urls=[workers[0].url], token=TOKEN) as client:
        assert client.get("counts", "k1", "n") == 1


def test_an_absent_key_is_told_only_by_a_worker_that_was_asked_about_all_partitions(
    connect: Callable[..., Any],
) -> None:
    """Another program has written the keys to partitions that murmur2 does not choose."""
    with state_workers(3, grouped=False) as workers:
        world = workers[0].world
        for number in range(12):
            key = f"k{number}"
            world.put(key, {"n": number}, (world.candidates(key)[0] + 1) % 3)
        client = connect(workers)
        for _ in range(3):
            assert [client.get("counts", f"k{number}", "n") for number in range(12)] == list(range(12))
            absent = client.key("counts", "nobody")
            assert (absent.found, len(absent.positions), absent.value) == (False, 3, {})
        asked(workers)
        client.get("counts", "k1", "n")
        assert sum(asked(workers)) == 1, "redirects of this store mislead, so its questions are forwarded"


def test_a_killed_owner_is_left_and_found_again_on_another_port(
    workers: list[StateWorker], connect: Callable[..., Any]
) -> None:
    client, world = connect(workers), workers[0].world
    owner = world.owners[client.key("counts", "k1").position.partition]
    other = workers[1 - int(owner.slot)]
    owner.kill()
    asked(workers)

    def restarts(target: str) -> Any:
        if len(other.asked) >= 3 and not owner.lives:
            owner.start()
        return None

    other.fault = restarts
    assert client.get("counts", "k1", "n") == 1
    asked(workers)
    assert [client.get("counts", "k1", "n") for _ in range(3)] == [1, 1, 1]
    assert asked(workers)[int(owner.slot)] >= 2


def test_an_owner_that_the_client_can_not_reach_answers_through_another_worker(
    workers: list[StateWorker], connect: Callable[..., Any]
) -> None:
    with state_workers(1) as elsewhere:
        refused = elsewhere[0].url
    client, world = connect(workers[:1]), workers[0].world
    reached, workers[1].url = workers[1].url, refused
    assert [client.get("counts", f"k{number}", "n") for number in range(20)] == list(range(20))
    assert {world.position(at)["worker"] for at in range(2)} == {"0", "1"}
    workers[1].url = reached


def test_a_connection_that_the_worker_closed_costs_no_answer(
    workers: list[StateWorker], connect: Callable[..., Any]
) -> None:
    client = connect(workers)
    for _ in range(3):
        assert client.get("counts", "k1", "n") == 1
        for each in workers:
            each.drop_connections()


def test_no_answer_within_the_timeout_says_why(workers: list[StateWorker], connect: Callable[..., Any]) -> None:
    for each in workers:
        each.fault = lambda target: StateWorker.away("Task 0 is being restored: 41 records are left.", "30")
    with pytest.raises(StateAway, match="41 records are left") as away:
        connect(workers, timeout_s=0.3).get("counts", "k1")
    assert away.value.retry_after_s == 30
    for each in workers:
        each.kill()
    with pytest.raises(NoWorkerAnswers, match="Start the processor's workers, or correct `urls`"):
        connect(workers, timeout_s=0.3).get("counts", "k1")


@pytest.mark.parametrize(
    "key", [".", "..", "...", "a/b", "%41", "é ☃", "", "?&=#+", "k\n", b".", b"\xc3\xa9/", 42, -1.5]
)
def test_every_key_arrives_as_it_is(workers: list[StateWorker], connect: Callable[..., Any], key: Any) -> None:
    workers[0].world.put(key.decode() if isinstance(key, bytes) else str(key), {"is": "it"})
    client = connect(workers)
    assert client.get("counts", key, "is") == "it"
    assert [each.state for each in client.many("counts", [key, "k1"])] == [{"is": "it"}, {"n": 1}]


def test_all_keys_come_through_pages_and_partitions(workers: list[StateWorker], connect: Callable[..., Any]) -> None:
    rows = list(connect(workers).keys("counts", page_size=3))
    assert sorted(row.key for row in rows) == sorted(f"k{number}" for number in range(20))
    assert all(row.state == {"n": int(row.key[1:])} and row.position.worker in "01" for row in rows)


def test_many_keys_come_in_order_and_later_from_their_owners(
    workers: list[StateWorker], connect: Callable[..., Any]
) -> None:
    world = workers[0].world
    names = [f"customer {number} {'x' * 100}" for number in range(120)]
    for number, name in enumerate(names):
        world.put(name, {"n": number})
    client = connect(workers)
    wanted = [*names, "nobody"]
    for _ in range(2):
        answers = client.many("counts", wanted)
        assert [answer.key for answer in answers] == wanted
        assert [answer.state.get("n") for answer in answers] == [*range(120), None]
        assert not answers[-1].found
    for name in ("k0", "k1"):
        client.get("counts", name)
    client.many("counts", names)
    asked(workers)
    client.many("counts", names)
    for each in workers:
        for target in each.asked:
            named = [name for name in names if name.split(" ")[1] in target.replace("+", " ").split(" ")]
            assert {world.owners[world.candidates(name)[0]] for name in named} == {each}
    assert all(len(target) < 16_000 for each in workers for target in each.asked)


def test_demands_are_sent(workers: list[StateWorker], connect: Callable[..., Any]) -> None:
    client = connect(workers)
    answer = client.key("counts", "k1")
    client.key("counts", "k1", after=answer, max_age=60, stale_ok=2.5, wait=0)
    client.key("counts", "k1", after=[("orders", 0, 42), answer.position])
    at = answer.position.partition
    sent = [target.partition("?")[2] for each in workers for target in each.asked][-2:]
    assert f"after=orders%3A{at}%3A7&wait=0.0&max_age=60.0&stale_ok=2.5" in sent[0]
    assert f"after=orders%3A0%3A42%2Corders%3A{at}%3A7" in sent[1]
    assert answer.age_s >= 0.25
    asked(workers)
    with pytest.raises(QueryWrong, match="after"):
        client.get("counts", "k1", after=41)
    with pytest.raises(QueryWrong, match="wait=2"):
        client.get("counts", "k1", wait=-1)
    with pytest.raises(QueryWrong, match="NoneType"):
        client.get("counts", None)
    with pytest.raises(QueryWrong, match="mix text and bytes"):
        list(client.keys("counts", start="a", end=b"b"))
    assert asked(workers) == [0, 0], "nothing wrong was sent"


def test_a_part_of_the_state_is_never_returned_as_all_of_it(
    workers: list[StateWorker], connect: Callable[..., Any]
) -> None:
    document = {"store": "counts", "key": "k1", "found": True, "state": {"n": 1}, "next": "AAAA"}
    document["position"] = workers[0].world.position(0)
    for each in workers:
        each.fault = lambda target: (200, {}, document)
    client = connect(workers)
    with pytest.raises(QueryWrong, match=r"client\.key\(store, key, page=answer\.next\)"):
        client.get("counts", "k1")
    assert client.get("counts", "k1", "n") == 1
    answer = client.key("counts", "k1")
    document.pop("next")
    assert client.key("counts", "k1", page=answer.next).next is None
    document["windows"] = [{"start": at, "end": at + 1, "value": 1} for at in range(ENTRIES_MAX)]
    with pytest.raises(QueryWrong, match="`start` and `end`"):
        client.windows("counts", "k1")


def test_damaged_answers_are_no_answers(workers: list[StateWorker], connect: Callable[..., Any]) -> None:
    for body in (b"", b"[]", b"{", b"{}", b'{"found": true}', b"[" * 100_000, b'{"position": 3, "found": true}'):
        for each in workers:
            each.fault = lambda target, body=body: (200, {}, body)
        with pytest.raises(StateAway):
            connect(workers, timeout_s=0.2).get("counts", "k1")


def test_workers_of_this_machine_are_found_and_found_again(tmp_path: Any, workers: list[StateWorker]) -> None:
    run = tmp_path / "run"
    with (
        StateClient("shop", home=tmp_path, timeout_s=0.3) as client,
        pytest.raises(NoWorkerAnswers, match="status shop"),
    ):
        client.get("counts", "k1")
    (run).mkdir(exist_ok=True)
    (run / "shop-9.json").write_text("{")
    workers[0].world.processor = "shop-2"
    workers[0].announce(run)
    workers[0].world.processor = "shop"
    with StateClient("shop", home=tmp_path, timeout_s=0.3) as client, pytest.raises(NoWorkerAnswers):
        client.get("counts", "k1")
    for each in workers:
        each.announce(run)
    with StateClient("shop", home=tmp_path) as client:
        assert [client.get("counts", f"k{number}", "n") for number in range(20)] == list(range(20))
        before = {each.url for each in workers}
        for each in workers:
            each.kill()
            each.start().announce(run)
        assert before.isdisjoint(each.url for each in workers)
        assert [client.get("counts", f"k{number}", "n") for number in range(20)] == list(range(20))


def test_a_worker_that_restarted_on_its_port_is_asked_with_its_new_token(
    tmp_path: Any, workers: list[StateWorker]
) -> None:
    (worker, *_) = workers
    worker.world.owners = dict.fromkeys(range(worker.world.partitions), worker)
    worker.announce(tmp_path / "run")
    with StateClient("shop", home=tmp_path, timeout_s=0.5) as client:
        assert client.get("counts", "k1", "n") == 1
        worker.token = "token-of-the-next-process"
        worker.announce(tmp_path / "run")
        assert client.get("counts", "k1", "n") == 1
        worker.token = "token-that-no-file-has"
        with pytest.raises(StateRefused):
            client.get("counts", "k1", "n")
        (tmp_path / "run" / "shop-0.json").unlink()
        with pytest.raises(NoWorkerAnswers):
            client.get("counts", "k1", "n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "neither a processor's name nor `urls`"),
        ({"urls": ["http://a:1"]}, "only one of `urls` and `token`"),
        ({"token": "t"}, "only one of `urls` and `token`"),
        ({"urls": [], "token": "t"}, "at least one URL"),
        ({"urls": "http://a:1", "token": "t"}, "at least one URL"),
        ({"urls": ["a:1"], "token": "t"}, "expected http://HOST:PORT"),
        ({"urls": ["http://a:1"], "token": "line\nbreak"}, "characters that no token has"),
        ({"processor": "shop", "timeout_s": 0}, "seconds above 0"),
    ],
)
@pytest.mark.parametrize("client", [StateClient, AsyncStateClient])
def test_arguments_that_contradict_each_other_are_refused(client: Any, arguments: Any, says: str) -> None:
    with pytest.raises(StateClientWrong, match=says):
        client(**arguments)


def test_a_closed_client_says_so(workers: list[StateWorker], connect: Callable[..., Any]) -> None:
    client = connect(workers)
    assert client.stores()[0]["store"] == "counts"
    client.close()
    with pytest.raises(StateClientWrong, match="closed"):
        client.stores()


def test_both_clients_have_the_same_methods_with_the_same_words() -> None:
    for name in (*METHODS, "keys", "close", "__init__"):
        one, other = getattr(StateClient, name), getattr(AsyncStateClient, name)
        assert one.__doc__ == other.__doc__
        assert list(inspect.signature(one).parameters.values()) == list(inspect.signature(other).parameters.values())
    public = [[name for name in vars(each) if not name.startswith("_")] for each in (StateClient, AsyncStateClient)]
    assert public[0] == public[1]


class Trouble:
    """Refusals, drops and damaged replies, in the same order whatever client asks."""

    def __init__(self, workers: list[StateWorker]) -> None:
        self._world, self._calls = workers[0].world, 0

    def __call__(self, target: str) -> Any:
        self._calls += 1
        match self._calls % 7:
            case 3:
                return StateWorker.away("moving")
            case 5:
                return 421, {}, {"error": "not here"}
            case 6:
                return 200, {}, {"found": True, "position": self._world.position(self._calls % 2)}
        return None


def heard_in_trouble(kind: Any) -> tuple[list[Any], list[list[str]]]:
    """The answers and errors of 21 queries, and the requests that each worker got."""
    with state_workers(2) as workers:
        trouble, heard = Trouble(workers), []
        for number in range(20):
            workers[0].world.put(f"k{number}", {"n": number})
        for each in workers:
            each.fault = trouble
        client = kind(urls=[each.url for each in workers], token=TOKEN)
        for number in range(21):
            try:
                heard.append(client.key("counts", f"k{number % 20}"))
            except StateAway as away:
                heard.append(away.message)
        ended(client)
        return heard, [each.asked for each in workers]


def test_both_clients_send_the_same_requests_and_give_the_same_answers() -> None:
    first, second = heard_in_trouble(StateClient), heard_in_trouble(Waited)
    assert first == second
    assert len({type(each) for each in first[0]}) == 2, "the trouble gives answers and errors"


def test_the_limits_are_those_of_the_workers() -> None:
    assert (ENTRIES_MAX, KEYS_MAX) == (service.LIMIT_MAX, service.KEYS_MAX)
