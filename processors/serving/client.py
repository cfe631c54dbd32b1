"""How others talk to a running processor: through its endpoint file and its HTTP server."""

from __future__ import annotations

import json
import os
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
        endpoint = self._endpoint()
        if endpoint is None:
            return None
        try:
            answer = httpx.get(f"{endpoint['url']}/status", timeout=timeout_s, trust_env=False)
            answer.raise_for_status()
            status = ProcessorStatus.decode(answer.json())
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        return status if status.processor == self.processor else None

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

        Raises:
            ProcessorSilent: The worker is not there, or refused.
        """
        return self._post("/checkpoint", timeout_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ask the worker to finish.

        Raises:
            ProcessorSilent: The worker is not there.
        """
        self._post("/stop", timeout_s)

    def _post(self, path: str, timeout_s: float) -> dict[str, Any]:
        endpoint = self._endpoint()
        seen = "it has no endpoint file"
        if endpoint is not None:
            try:
                answer = httpx.post(
                    f"{endpoint['url']}{path}",
                    headers={"Authorization": f"Bearer {endpoint['token']}"},
                    timeout=timeout_s,
                    trust_env=False,
                )
                if answer.is_success:
                    document: dict[str, Any] = answer.json()
                    return document
                seen = f"it answered {answer.status_code}: {answer.text[:200]}"
            except httpx.HTTPError as failure:
                seen = f"no answer: {failure}"
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
