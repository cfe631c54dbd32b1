"""The conversation about one question, from the first request to the answer, without any I/O.

    known owner ──────────► ask it; it forwards what it does not own
    no known owner ───────► ask a worker with `redirect=true` ──► 200: it is the owner
                                                              └─► 307: ask the named owner
    404 of a named owner ─► it knows one partition only, so a worker is asked about the whole key
    421, 503, no reply ───► forget the owner, wait as long as the worker says, ask the next worker; if there is no time
                            for the wait, ask it at once

Invariants:
    - "Not found" is returned only from a worker that was asked about the whole key.
    - The conversation ends within its timeout. It waits no longer than the time that is left.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from holdfast.infra.clock import Clock
from holdfast.processors.client.answers import position_of
from holdfast.processors.client.errors import NoWorkerAnswers, StateRefused
from holdfast.processors.client.known_owners import KnownOwners, Owner
from holdfast.processors.client.questions import Question
from holdfast.processors.client.replies import Again, Lost, Moved, Reply, Settled, verdict_of
from holdfast.processors.client.workers import Worker, Workers
from holdfast.processors.engine.queries.demand import Position
from holdfast.processors.engine.queries.errors import StateAway

#: Maximum seconds for one request, in addition to the time that the worker may wait. After it, a frozen worker is left.
#: It is longer than the time that a worker gives the owner to which it forwards a question.
REQUEST_S = 6.0
#: Seconds between two rounds over all workers: first and longest.
PAUSE_S, PAUSE_MAX_S = 0.1, 1.0
#: Maximum number of redirects that one question follows.
REDIRECTS_MAX = 3


@dataclass(frozen=True, slots=True)
class Ask:
    """Effect: send a GET request, and return a ``Reply`` or ``Lost``."""

    worker: Worker
    target: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Effect: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Look:
    """Effect: find the workers again."""


Effect = Ask | Pause | Look
Conversation = Generator[Effect, Reply | Lost | None, Settled]


@dataclass(frozen=True, slots=True)
class Known:
    """What the conversations of one client share."""

    workers: Workers
    clock: Clock
    timeout_s: float
    owners: KnownOwners = field(default_factory=KnownOwners)
    #: The next number of a question. Questions without a known owner begin with another worker each time.
    turns: Iterator[int] = field(default_factory=count)


@dataclass(frozen=True, slots=True)
class _Request:
    """One request: ``of_owner`` is the owner that was expected; ``whole`` is False for one partition of the key."""

    worker: Worker
    target: str
    redirect: bool = False
    whole: bool = True
    of_owner: Owner | None = None


class Talk:
    """The state of one conversation."""

    def __init__(self, question: Question, known: Known) -> None:
        self._question, self._known = question, known
        self._until = known.clock.monotonic() + known.timeout_s
        self._redirects = question.redirects and not known.owners.scatters(question.store)
        self._turn = next(known.turns)
        self._tried: set[str] = set()
        self._redialed: set[str] = set()
        self._hops, self._pause_s = 0, PAUSE_S
        self._next: _Request | None = None
        self._missed: set[int] = set()
        self._failure: StateAway | None = None

    def run(self) -> Conversation:
        """The conversation: yields effects, and returns the answer.

        Raises:
            QueryWrong, StateRefused, StoreUnknown: The question can't be answered.
            StateAway: No worker answered within the timeout.
        """
        if self._known.workers.is_old(self._now()):
            yield Look()
        while True:
            request = self._request()
            if request is None:
                yield from self._rest()
                continue
            reply = yield Ask(request.worker, request.target, self._time_of_request())
            assert reply is not None
            try:
                verdict = verdict_of(reply, request.worker.url, may_redirect=request.redirect)
            except StateRefused:
                yield Look()
                if self._has_old_token(request):
                    continue
                raise
            match verdict:
                case Settled():
                    self._known.owners.up(request.worker.url)
                    again_s = self._settles(request, verdict)
                    if again_s is None:
                        return verdict
                    yield from self._waits(again_s)
                case Moved():
                    yield from self._follow(verdict)
                case Again():
                    self._failure = verdict.reason if not verdict.no_reply else self._silent(verdict.reason.message)
                    yield from self._turn_away(request, reply, verdict)

    # -- the next request ------------------------------------------------------------------------------------------

    def _request(self) -> _Request | None:
        """Returns the next request; None if all workers were tried."""
        request, self._next = self._next, None
        if request is not None:
            return request
        owner = self._known.owners.of(self._question)
        if owner is not None and owner.url not in self._tried:
            worker = self._known.workers.at(owner.url)
            if worker is not None:
                return _Request(worker, self._question.target(), of_owner=owner)
        workers = self._known.workers.known()
        for number in range(len(workers)):
            worker = workers[(self._turn + number) % len(workers)]
            if worker.url not in self._tried:
                target = self._question.target(redirect=self._redirects)
                return _Request(worker, target, redirect=self._redirects)
        return None

    def _time_of_request(self) -> float:
        left = self._until - self._now()
        if left <= 0:
            raise self._given_up()
        return min(left, self._question.wait_s + REQUEST_S)

    # -- an answer -------------------------------------------------------------------------------------------------

    def _settles(self, request: _Request, settled: Settled) -> float | None:
        """Returns None if an answer ends the conversation, else the seconds until the next request."""
        positions = _positions(settled.document)
        if len(positions) == 1:
            self._learn(request, positions[0])
        if settled.document.get("found") is False and not request.whole:
            self._redirects = False
            self._missed |= {each.partition for each in positions}
            return 0.0
        if self._missed and not self._missed & {each.partition for each in positions}:
            self._known.owners.scattered(self._question.store)
        age_s = max((each.age_s for each in positions), default=0.0) + self._now() - settled.sent_at
        age_max_s = self._question.max_age_s
        if age_max_s is not None and positions and age_s > age_max_s:
            self._failure = StateAway(
                f"The answer is {age_s:.3f} s old, including the time since it was asked for; `max_age` is "
                f"{age_max_s:g} s."
            )
            return PAUSE_S
        return None

    def _learn(self, request: _Request, position: Position) -> None:
        expected = request.of_owner is not None and request.of_owner.name == position.worker
        certain = request.redirect or expected
        named = [each.url for each in self._known.workers.known() if each.name and each.name == position.worker]
        url = request.worker.url if certain else None
        self._known.owners.learn(self._question, position, url, named[0] if len(named) == 1 else None)

    def _has_old_token(self, request: _Request) -> bool:
        """Whether a refused token was that of a process that has ended. If so, chooses the next request."""
        worker = self._known.workers.at(request.worker.url)
        if worker == request.worker:
            return False
        if worker is None:
            self._failure = self._silent(f"The worker at {request.worker.url} has ended.")
            self._tried.add(request.worker.url)
        else:
            self._next = replace(request, worker=worker)
        return True

    # -- no answer -------------------------------------------------------------------------------------------------

    def _follow(self, moved: Moved) -> Generator[Effect, Any, None]:
        """Chooses the named owner for the next request; otherwise workers have to forward the question."""
        self._hops += 1
        if self._hops > REDIRECTS_MAX or self._known.owners.is_down(moved.url, self._now()):
            self._redirects = False
            return
        worker = self._known.workers.at(moved.url)
        if worker is None:
            yield Look()
            worker = self._known.workers.at(moved.url)
        if worker is None:
            self._redirects = False
            return
        mark = "&" if "?" in moved.target else "?"
        self._next = _Request(worker, f"{moved.target}{mark}redirect=true", redirect=True, whole=False)

    def _turn_away(self, request: _Request, reply: Reply | Lost | None, again: Again) -> Generator[Effect, Any, None]:
        url = request.worker.url
        if isinstance(reply, Lost) and reply.dropped and url not in self._redialed:
            # The worker may have closed an idle connection, so the same request is sent on a new one.
            self._redialed.add(url)
            self._next = request
            return
        self._tried.add(url)
        if not request.whole:
            self._redirects = False
        if again.no_reply:
            self._known.owners.down(url, self._now())
            yield Look()
            return
        self._known.owners.forget(self._question, url)
        is_alone = all(each.url in self._tried for each in self._known.workers.known())
        if is_alone or self._now() + again.after_s < self._until:
            yield from self._waits(again.after_s)

    def _rest(self) -> Generator[Effect, Any, None]:
        """All workers were tried: waits, finds the workers again, and begins with the first one."""
        if not self._known.workers.known() and self._failure is None:
            self._failure = self._silent(f"No worker is known that can answer {self._question.path}.")
        yield from self._waits(self._pause_s)
        yield Look()
        self._tried.clear()
        self._redialed.clear()
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)

    def _waits(self, seconds: float) -> Generator[Effect, Any, None]:
        if self._now() + seconds >= self._until:
            raise self._given_up()
        if seconds > 0:
            yield Pause(seconds)

    def _given_up(self) -> StateAway:
        last = self._failure
        within = f"No answer about {self._question.path} within {self._known.timeout_s:g} s"
        if last is None:
            return StateAway(f"{within}.")
        if isinstance(last, NoWorkerAnswers):
            return self._silent(f"{within}. {last.message}")
        return StateAway(f"{within}. {last.message}", retry_after_s=last.retry_after_s)

    def _silent(self, message: str) -> NoWorkerAnswers:
        return NoWorkerAnswers(message, action=self._known.workers.action)

    def _now(self) -> float:
        return self._known.clock.monotonic()


def _positions(document: dict[str, Any]) -> list[Position]:
    """The positions of an answer about one key or one page; empty if it has another form."""
    try:
        return [position_of(each) for each in document.get("positions") or [document["position"]]]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def about(question: Question, known: Known) -> Conversation:
    """Begins the conversation about a question."""
    return Talk(question, known).run()
