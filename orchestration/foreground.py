"""Runs all services of ``holdfast up`` in the foreground: ``python -m holdfast.orchestration.foreground``.

This is the main process of a container. It starts the services, waits for SIGTERM or SIGINT, then stops the services
like ``holdfast down``. Until the signal, it updates ``run/scrape-targets.json`` in the home folder: the addresses of
all workers, for Prometheus' file discovery.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import sys
import threading
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.infra.paths import Paths
from holdfast.infra.system.files import replace_text

#: Seconds between two reads of the workers' endpoint files (address and process id).
LOOK_EVERY_S = 10.0
#: Timeout of a health check of Dagster's UI, seconds.
CHECK_WITHIN_S = 4.0


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code of ``up`` if ``up`` failed, otherwise ``down``'s exit code."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.orchestration.foreground", description=__doc__)
    parser.add_argument("--port", type=int, default=3000, help="port of Dagster's UI")
    parser.add_argument(
        "--production", action="store_true", help="Dagster's runs and events on Postgres (DAGSTER_POSTGRES_*)"
    )
    parser.add_argument(
        "--check", action="store_true", help="only ask whether the UI answers; exit code 1: it does not"
    )
    given = parser.parse_args(arguments)
    if given.check:
        return int(not answers(given.port))
    # Imported late, because a health check, which runs every few seconds, does not need these modules.
    from holdfast.infra.settings import load_settings
    from holdfast.orchestration.cli import main as holdfast
    from holdfast.orchestration.commands.installation.up import NOT_ALL_DEPLOYED

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    paths = load_settings().paths
    if given.production:
        _configure(paths)
    code = holdfast(["up", "--port", str(given.port)])
    if code in (0, NOT_ALL_DEPLOYED):  # If one processor could not be started, the other processors keep running.
        follow(paths, lambda: ended.wait(LOOK_EVERY_S))
    return holdfast(["down"]) or (0 if code == NOT_ALL_DEPLOYED else code)


def answers(port: int) -> bool:
    """Whether Dagster's UI answers on this port of this machine.

    A page (200), a redirect to the UI's path prefix (307) and a request for a token (401) count as answers.
    """
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=CHECK_WITHIN_S)
    try:
        asked.request("GET", "/")
        return asked.getresponse().status in (200, 307, 401)
    except OSError:
        return False
    finally:
        asked.close()


def follow(paths: Paths, pause: Callable[[], bool]) -> None:
    """Write the workers' addresses repeatedly. ``pause`` waits between two writes, and ends the loop if it is True."""
    while True:
        paths.run.mkdir(parents=True, exist_ok=True)
        replace_text(paths.run / "scrape-targets.json", json.dumps(scrape_targets(paths.run), indent=1))
        if pause():
            return


def scrape_targets(run: Path) -> list[dict[str, list[str]]]:
    """The workers' addresses from the endpoint files in ``run``, in the format of Prometheus' ``file_sd_configs``."""
    addresses = set()
    for file in run.glob("*.json"):
        try:
            found = json.loads(file.read_text())
        except (OSError, ValueError):
            continue  # The worker has ended and deleted its file, or is writing the file at this moment.
        if isinstance(found, dict) and found.get("url"):
            addresses.add(urlsplit(found["url"]).netloc)
    return [{"targets": sorted(addresses)}] if addresses else []


def _configure(paths: Paths) -> None:
    """Write a ``dagster.yaml`` that uses Postgres, unless the home folder already has a ``dagster.yaml``."""
    config = paths.dagster / "dagster.yaml"
    if not config.exists():
        paths.dagster.mkdir(parents=True, exist_ok=True)
        replace_text(config, (files("holdfast.infra") / "dagster" / "production.yaml").read_text())


if __name__ == "__main__":
    sys.exit(main())
