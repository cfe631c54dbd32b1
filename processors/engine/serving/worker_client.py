"""The client for a worker's HTTP routes: status, control, and owner commands.

An owner command is a change of state that an operator requests. The worker's endpoint file has the URL and the token.

Invariants:
    - Nothing is sent before the client has checked that the process of the endpoint file runs, by its pid and start
      mark (a value that distinguishes it from a later process with the same pid).
    - A token is sent only if the route needs it. Before that, the client checks that the worker's process listens on
      the port to which the client has connected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.infra import http_request
from holdfast.infra.errors import HoldfastError
from holdfast.infra.http_request import Answer
from holdfast.infra.paths import Paths
from holdfast.infra.system.json_file import read_json
from holdfast.infra.system.rooted import inside
from holdfast.processors.engine.runtime.owner_commands.commands import (
    COMMAND_BYTES_MAX,
    READ_PAGE,
    CommandFailed,
    CommandRefused,
    CommandWrong,
    Key,
    Offsets,
    key_of,
)
from holdfast.processors.engine.serving.endpoint_file import Endpoint, read_endpoint
from holdfast.processors.engine.serving.failure_file import failure_file
from holdfast.processors.engine.serving.status import ProcessorStatus

#: Seconds between two reads of a running command's ticket (its state and progress).
LOOK_EVERY_S = 0.1
#: Default timeout of a command, in seconds.
COMMAND_TIMEOUT_S = 3600.0
#: Maximum bytes of a request's body, not counting the message keys in it.
_BODY_REST_BYTES = 65_536


#: The exceptions of decoding an answer that is not a worker's valid JSON document. Deep nesting raises RecursionError.
_UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)

#: A function that the client calls with the ticket of a running command (its state and progress) after each check.
ProgressLog = Callable[[Mapping[str, Any]], None]


def _no_one(ticket: Mapping[str, Any]) -> None:
    """Does nothing. It is the default of ``tell``, for callers that do not need the progress."""


class _StrangerAtPort(Exception):
    """A program that is not the worker listens on the port in the worker's endpoint file."""


class ProcessorSilent(HoldfastError):
    """A worker did not answer, or refused a control request."""


class ProcessorClient:
    """Controls one worker from another process.

    The endpoint file of the worker's slot (its place on this machine, with a number and a folder) has its address.
    """

    def __init__(self, processor: str, slot: str, paths: Paths) -> None:
        self.processor = processor
        self.slot = slot
        self._file = paths.endpoint(processor, slot)
        self._checkpoints = paths.checkpoints(processor)

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        """Returns the worker's status; None if no worker runs, or if it does not answer within ``timeout_s``."""
        answer = self._get("/status", timeout_s)
        try:
            status = ProcessorStatus.decode(answer.json()) if answer is not None and answer.is_success else None
        except _UNREADABLE:
            return None
        return status if status is not None and status.processor == self.processor else None

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        """Returns the last heartbeat of the process with this pid; None if the process has no endpoint file.

        This works even if the process does not answer, because the heartbeat is the modification time of the endpoint
        file.
        """
        endpoint = read_endpoint(self._file)
        if endpoint is None or pid is None or endpoint.pid != pid:
            return None
        try:
            return datetime.fromtimestamp(self._file.stat().st_mtime, UTC)
        except OSError:
            return None

    def last_failure(self) -> ProcessorStatus | None:
        """Returns the status that the worker wrote when it last stopped with an error; None if there is none."""
        return read_json(failure_file(self._file), ProcessorStatus)

    def alive(self) -> bool:
        """Whether the worker's process runs. A running process may still be stuck.

        Returns False if the endpoint file was written before a reboot or in another container.
        """
        endpoint = read_endpoint(self._file)
        return endpoint is not None and endpoint.is_alive

    def checkpoint(self, timeout_s: float = 150.0) -> dict[str, Any]:
        """Makes the worker commit, and copy the databases of all running tasks into a folder on its machine.

        Returns the manifest of this copy (a local checkpoint).

        Raises:
            ProcessorSilent: The worker does not answer, or refused the request. All control requests raise it.
            PathOutside: The manifest contains a path outside of this processor's checkpoints.
        """
        manifest = self._post("/checkpoint", timeout_s)
        for task in manifest["tasks"]:
            inside(self._checkpoints, task["path"])
        return manifest

    def compact(self, timeout_s: float = 150.0) -> dict[str, Any]:
        """Makes the worker compact its databases. Returns their sizes before and after, in bytes."""
        return self._post("/compact", timeout_s)

    def pause(self, timeout_s: float = 150.0) -> None:
        """Makes the worker stop reading input until ``resume``. It keeps its partitions and commits its work."""
        self._post("/pause", timeout_s)

    def resume(self, timeout_s: float = 150.0) -> None:
        """Makes the worker read its inputs again after ``pause``."""
        self._post("/resume", timeout_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Asks the worker to commit and end. Returns before the worker has ended."""
        self._post("/stop", timeout_s)

    # -- owner commands about state and positions ------------------------------------------------------------------

    def count(self, store: str | Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S, **which: Any) -> dict[str, Any]:
        """Counts the selected message keys, entries and bytes in one store, or in several stores of the same tasks.

        Args:
            which: ``partitions`` (numbers; default: all partitions of the worker), and one of ``keys`` (a list of text
                or bytes), ``prefix`` (text or bytes) or ``all=True``. ``window`` (from, up to, in milliseconds since
                1970) selects only windows that overlap this range. ``read`` does not support ``window``.

        Raises (as all commands do):
            CommandWrong: The command names something that the processor does not have, for example an unknown store.
            CommandRefused: The worker can't run the command in its present state.
            CommandFailed: The command stopped early. Completed batches remain in effect, and a repeated command
                continues after them.
            ProcessorSilent: The worker does not answer. If the command was already sent, its outcome is unknown, so
                repeat it.
        """
        return self._select("/state/count", store, timeout_s, **which)

    def read(self, store: str, limit: int, timeout_s: float = 150.0, **which: Any) -> dict[str, Any]:
        """Reads at most ``limit`` selected entries, as of the last commit.

        The arguments select entries as in ``count``.

        Returns:
            ``rows``: the entries in the form of export files. ``more``: whether there are further selected entries.
            ``positions``: for each partition and input topic, the next input offset at the last commit.

        Raises:
            CommandWrong, CommandRefused, ProcessorSilent: For the same reasons as in ``count``.
        """
        asked = {name: value for name, value in which.items() if value is not None and value is not False}
        answer = self._send(
            "POST", READ_PAGE, timeout_s, msgspec.json.encode({**asked, "store": store, "limit": limit})
        )
        if answer.status_code in (400, 409):
            raise _refusal(answer)
        if not answer.is_success:
            raise self._silent(READ_PAGE, f"it answered {answer.status_code}: {answer.text[:200]}")
        document: dict[str, Any] = answer.json()
        return document

    def export(self, store: str | Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S, **which: Any) -> dict[str, Any]:
        """Writes the selected keys to a file on the worker's machine, as of a single moment.

        The arguments select entries as in ``count``.

        Returns:
            The same as ``count``, and ``files``, each with ``path``, ``sha256``, ``keys``, ``entries`` and ``bytes``.
            If there is a single file, ``path`` and ``sha256`` are also at the top level.
        """
        return self._select("/state/export", store, timeout_s, **which)

    def clear(self, store: str | Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S, **which: Any) -> dict[str, Any]:
        """Deletes the selected keys from the store and its changelog.

        Args:
            which: The same as in ``count``, and three more arguments. ``export=True`` first writes the entries of the
                keys to files. ``positions`` (topic to partition to offset) are the offsets at which a paused worker
                reads its inputs next. They are committed together with the last deletes of their task. ``once`` is a
                name for the command. If the command is repeated with the same name and keys, finished tasks delete
                nothing.

        Returns:
            The same as ``count``, for the deleted keys; with ``export``, the same as ``export``. ``before`` has the
            paths of the export files of earlier attempts with the same ``once`` name. ``ends`` has for each store and
            partition (as text) the changelog offset after the deletes: later records are of later messages.
        """
        return self._select("/state/clear", store, timeout_s, **which)

    def position(self, positions: Offsets, timeout_s: float = COMMAND_TIMEOUT_S) -> dict[str, Any]:
        """Sets the input positions of a paused worker (topic to partition to offset).

        The state stays unchanged. If the new position is earlier, the records after it change the state a second time.
        """
        return self._command("/inputs/position", {"positions": positions}, timeout_s)

    def until(
        self, positions: Offsets, timeout_s: float = COMMAND_TIMEOUT_S, tell: ProgressLog = _no_one
    ) -> dict[str, Any]:
        """Makes a shadow (a worker that rebuilds a store) process its inputs exactly up to these offsets, and waits.

        ``tell`` is called with the command's progress at each check; ``done`` and ``total`` are numbers of offsets. The
        field ``positions`` of the result has the committed offsets, which equal the requested offsets.
        """
        return self._command("/inputs/until", {"positions": positions}, timeout_s, tell)

    def adopt(
        self,
        store: str,
        changelog: str,
        upto: Mapping[int, int],
        positions: Offsets | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
        tell: ProgressLog = _no_one,
        **more: Any,
    ) -> dict[str, Any]:
        """Makes a store of a paused worker equal to another changelog, byte for byte.

        No worker may write this changelog meanwhile.

        Args:
            upto: For each partition, the next offset at the end of the changelog. Only these partitions are changed.
            positions: The offsets from which the inputs are read after the command. They are committed with the last
                change of their task.
            more: ``keep=True`` changes only message keys that are in the changelog; all other keys stay unchanged.
                ``export=True`` first writes the present entries to a file: the entries of ``keys``, or all entries
                without ``keys``. ``once`` is a name for the command. If the command is repeated with this name, tasks
                that it has begun to change are not exported again.

        Returns:
            ``set``, ``deleted`` and ``same``, as numbers of entries; ``inputs``: for each partition, the input offsets
            of the adopted state; with an export, ``export`` with its ``path``, and ``before`` with the paths of earlier
            attempts.
        """
        asked: dict[str, Any] = {"store": store, "changelog": changelog, "upto": upto}
        # Arguments that were not given are left out of the request, because workers of older versions may not know
        # them.
        asked |= {name: value for name, value in more.items() if value}
        if "keys" in asked and len(_portions(asked["keys"])) > 1:
            del asked["keys"]  # The keys do not fit into one request, so the command exports all keys of the store.
        positioned = {} if positions is None else {"positions": positions}
        return self._command("/state/adopt", asked | positioned, timeout_s, tell)

    def _select(self, page: str, store: str | Sequence[str], timeout_s: float, **which: Any) -> dict[str, Any]:
        """Runs a command for the selected keys. Many keys are split into several requests."""
        asked = {name: value for name, value in which.items() if value is not None and value is not False}
        asked["store"] = store if isinstance(store, str) else list(store)
        if "prefix" in asked:
            asked["prefix"] = key_of(asked["prefix"])
        if "keys" not in asked:
            return _together([self._command(page, asked, timeout_s)])
        deadline, positions = time.monotonic() + timeout_s, asked.pop("positions", None)
        parts = _portions([key_of(key) for key in asked.pop("keys")])
        results = []
        for number, keys in enumerate(parts, 1):
            part = {**asked, "keys": keys}
            if "once" in asked and len(parts) > 1:
                part["once"] = f"{asked['once']}/{number}"
            if positions is not None and number == len(parts):
                part["positions"] = positions
            results.append(self._command(page, part, deadline - time.monotonic()))
        return _together(results)

    def _command(
        self, page: str, asked: Mapping[str, Any], timeout_s: float, tell: ProgressLog = _no_one
    ) -> dict[str, Any]:
        """Starts an owner command, waits for its end and returns its result."""
        deadline = time.monotonic() + timeout_s
        begun = self._send("POST", page, min(150.0, timeout_s), msgspec.json.encode(asked))
        if begun.status_code in (400, 409):
            raise _refusal(begun)
        if not begun.is_success:
            raise self._silent(page, f"it answered {begun.status_code}: {begun.text[:200]}")
        ticket_id = begun.json()["id"]
        while time.monotonic() < deadline:
            answer = self._get("/maintenance", 10.0)
            if answer is not None and answer.is_success:
                told = next((each for each in answer.json()["commands"] if each["id"] == ticket_id), None)
                if told is None:
                    raise self._silent(page, "it was restarted, so the outcome is unknown; repeat the command")
                tell(told)
                if told["phase"] == "done":
                    result: dict[str, Any] = told["result"]
                    return result
                if told["phase"] == "failed":
                    error = told["error"]
                    raise CommandFailed(error["message"], action=error["action"], **error["fields"])
            elif not self.alive():
                raise self._silent(page, "it ended, so the outcome is unknown; repeat the command")
            time.sleep(LOOK_EVERY_S)
        raise self._silent(page, f"the command is not done after {timeout_s:.0f} s, and continues")

    def _get(self, page: str, timeout_s: float) -> Answer | None:
        with suppress(ProcessorSilent):
            return self._send("GET", page, timeout_s)
        return None

    def _post(self, path: str, timeout_s: float) -> dict[str, Any]:
        answer = self._send("POST", path, timeout_s)
        if not answer.is_success:
            raise self._silent(path, f"it answered {answer.status_code}: {answer.text[:200]}")
        try:
            document: dict[str, Any] = answer.json()
        except _UNREADABLE as failure:
            raise self._silent(path, f"its answer can't be read: {failure!r}") from failure
        return document

    def _send(self, method: str, path: str, timeout_s: float, body: bytes = b"") -> Answer:
        endpoint = read_endpoint(self._file)
        if endpoint is None:
            raise self._silent(path, "it has no endpoint file")
        if not endpoint.is_alive:
            raise self._silent(path, f"its process {endpoint.pid} has ended")
        headers, with_token = {}, method != "GET" or endpoint.reads_need_token

        def check() -> None:
            # A worker listens on its port only once in its life. So if the worker's process listens on the port after
            # the connection was made, the connection leads to this worker.
            if with_token:
                _check_owner(endpoint)

        try:
            check()
            if with_token:
                headers["Authorization"] = f"Bearer {endpoint.token}"
            url = endpoint.url + path
            return http_request.request(method, url, timeout_s=timeout_s, body=body, headers=headers, on_connect=check)
        except _StrangerAtPort as stranger:
            raise self._silent(path, str(stranger)) from None
        except http_request.FAILURES as failure:
            raise self._silent(path, f"it did not answer: {failure!r}") from failure

    def _silent(self, path: str, seen: str) -> ProcessorSilent:
        return ProcessorSilent(
            f"Processor {self.processor} (slot {self.slot}) did not carry out {path}: {seen}.",
            action=f"Run `holdfast status`, then `holdfast logs {self.processor}`.",
            processor=self.processor,
            slot=self.slot,
        )


def _check_owner(endpoint: Endpoint) -> None:
    if not endpoint.is_owner:
        raise _StrangerAtPort(f"another program listens at {endpoint.url}, or none; no token was sent")


def _refusal(answer: Answer) -> HoldfastError:
    try:
        told = answer.json()
    except _UNREADABLE:
        told = {}
    kind = CommandWrong if answer.status_code == 400 else CommandRefused
    message, action = told.get("error", answer.text[:200]), told.get("action", "Read the worker's log.")
    return kind(message, action=action, **told.get("fields", {}))


def _portions(keys: Sequence[Key]) -> list[list[Key]]:
    """Splits keys into lists that each fit into one request. Without keys, returns one empty list."""
    portions: list[list[Key]] = [[]]
    size = _BODY_REST_BYTES
    for key in keys:
        takes = len(msgspec.json.encode(key)) + 1
        if portions[-1] and size + takes > COMMAND_BYTES_MAX:
            portions.append([])
            size = _BODY_REST_BYTES
        portions[-1].append(key)
        size += takes
    return portions


def _together(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Adds up the results of several requests of one command, and collects their export files."""
    told: dict[str, Any] = {name: sum(part[name] for part in results) for name in ("keys", "entries", "bytes")}
    told["partitions"] = results[0]["partitions"]
    exports = [part if "path" in part else part.get("export") for part in results]
    if before := [path for part in results for path in part.get("before", ())]:
        told["before"] = before
    if "ends" in results[-1]:
        told["ends"] = results[-1]["ends"]
    if files := [
        {name: export[name] for name in ("path", "sha256", "keys", "entries", "bytes")} for export in exports if export
    ]:
        told["files"] = files
        if len(files) == 1:
            told |= {name: files[0][name] for name in ("path", "sha256")}
    return told
