"""How others talk to a running processor: through its endpoint file and its HTTP server."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Any

import httpx

from infra.errors import HoldfastError
from infra.paths import Paths
from processors.serving.status import ProcessorStatus


class ProcessorSilent(HoldfastError):
    """A processor did not do what it was asked."""


class ProcessorClient:
    """One worker, seen from another process.

    Args:
        processor: The processor's name.
        slot: The worker's slot.
        paths: Where the endpoint file is.
    """

    def __init__(self, processor: str, slot: str, paths: Paths) -> None:
        self.processor = processor
        self.slot = slot
        self._file = paths.endpoint(processor, slot)

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        """What the worker says of itself; None when it is not there or does not answer in time."""
        answer = self._get("/status", timeout_s)
        try:
            status = ProcessorStatus.decode(answer.json()) if answer is not None and answer.is_success else None
        except (ValueError, KeyError, TypeError):
            return None
        return status if status is not None and status.processor == self.processor else None

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Whether the worker is there and its loop lives."""
        answer = self._get("/health", timeout_s)
        return answer is not None and answer.is_success

    def ready(self, timeout_s: float = 2.0) -> tuple[bool, str]:
        """Whether the worker works, and what it waits for when it doesn't."""
        answer = self._get("/ready", timeout_s)
        if answer is None:
            return False, "it doesn't answer"
        try:
            return answer.is_success, str(answer.json().get("reason", ""))
        except (ValueError, AttributeError):
            return False, f"it answered {answer.status_code}"

    def metrics(self, timeout_s: float = 2.0) -> str | None:
        """The metrics in Prometheus' text format; None when the worker does not answer."""
        answer = self._get("/metrics", timeout_s)
        return answer.text if answer is not None and answer.is_success else None

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        """When the loop of that very process last gave a sign of life; None when it never came so far.

        It is known of a process that doesn't answer, too.
        """
        endpoint = self._endpoint()
        if endpoint is None or pid is None or endpoint.get("pid") != pid:
            return None
        try:
            return datetime.fromtimestamp(self._file.stat().st_mtime, UTC)
        except OSError:
            return None

    def last_failure(self) -> ProcessorStatus | None:
        """What the worker said when it last stopped with an error; None when it never did."""
        try:
            return ProcessorStatus.decode(json.loads(self._file.with_suffix(".failed.json").read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def alive(self) -> bool:
        """Whether the process of the endpoint file exists (it may be stuck)."""
        endpoint = self._endpoint()
        if endpoint is None:
            return False
        try:
            os.kill(int(endpoint["pid"]), 0)
        except (OSError, ValueError):
            return False
        return True

    def checkpoint(self, timeout_s: float = 150.0) -> dict[str, Any]:
        """Commit and checkpoint all running tasks; returns the manifest.

        Raises (as all verbs do):
            ProcessorSilent: The worker is not there, or refused.
        """
        return self._post("/checkpoint", timeout_s)

    def compact(self, timeout_s: float = 150.0) -> dict[str, Any]:
        """Rewrite the stores without what was deleted or overwritten; returns sizes in bytes, before and after."""
        return self._post("/compact", timeout_s)

    def pause(self, timeout_s: float = 150.0) -> None:
        """Have it read no more input until ``resume``; it keeps its partitions, and commits what it has."""
        self._post("/pause", timeout_s)

    def resume(self, timeout_s: float = 150.0) -> None:
        """Have it read its inputs again."""
        self._post("/resume", timeout_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ask the worker to finish."""
        self._post("/stop", timeout_s)

    def _get(self, page: str, timeout_s: float) -> httpx.Response | None:
        endpoint = self._endpoint()
        if endpoint is None:
            return None
        try:
            return httpx.get(
                f"{endpoint['url']}{page}", headers=_authorization(endpoint), timeout=timeout_s, trust_env=False
            )
        except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError):
            return None

    def _post(self, path: str, timeout_s: float) -> dict[str, Any]:
        endpoint = self._endpoint()
        seen = "it has no endpoint file"
        if endpoint is not None:
            try:
                answer = httpx.post(
                    f"{endpoint['url']}{path}", headers=_authorization(endpoint), timeout=timeout_s, trust_env=False
                )
                if answer.is_success:
                    document: dict[str, Any] = answer.json()
                    return document
                seen = f"it answered {answer.status_code}: {answer.text[:200]}"
            except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError) as failure:
                seen = f"no answer that can be read: {failure!r}"
        raise ProcessorSilent(
            f"Processor {self.processor} (slot {self.slot}) was asked for {path}; {seen}.",
            action=f"Look at `holdfast status` and at the log of {self.processor}.",
            processor=self.processor,
            slot=self.slot,
        )

    def _endpoint(self) -> dict[str, Any] | None:
        try:
            endpoint: dict[str, Any] = json.loads(self._file.read_text())
            return endpoint
        except (OSError, ValueError):
            return None


def _authorization(endpoint: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {endpoint['token']}"}
