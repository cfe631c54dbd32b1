"""Runs the control room in the foreground, as a container does: ``python -m holdfast.orchestration.foreground``.

It starts the services of ``holdfast up``, waits for SIGTERM or SIGINT, then stops the services like ``holdfast down``.
Meanwhile it maintains ``run/scrape-targets.json`` below the home: the addresses of all workers, for Prometheus' file
discovery.
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

#: Interval between two looks at the workers' endpoint files, seconds.
LOOK_EVERY_S = 10.0
#: How long the UI may take to answer a health check, seconds.
CHECK_WITHIN_S = 4.0


def main(arguments: list[str] | None = None) -> int:
    """Run until a signal; returns the exit code of ``up`` if ``up`` fails, else of ``down``."""
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
    # imported here: a health check runs every few seconds and does not need these
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
    if code in (0, NOT_ALL_DEPLOYED):  # one broken processor must not stop the others
        follow(paths, lambda: ended.wait(LOOK_EVERY_S))
    return holdfast(["down"]) or (0 if code == NOT_ALL_DEPLOYED else code)


def answers(port: int) -> bool:
    """Whether Dagster's UI answers.

    With a page, with a redirect to its path prefix, or with a request for its token.
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
    """Write the workers' addresses until ``pause`` returns True."""
    while True:
        paths.run.mkdir(parents=True, exist_ok=True)
        replace_text(paths.run / "scrape-targets.json", json.dumps(scrape_targets(paths.run), indent=1))
        if pause():
            return


def scrape_targets(run: Path) -> list[dict[str, list[str]]]:
    """The addresses in a folder of endpoint files, in the form of Prometheus' ``file_sd_configs``."""
    addresses = set()
    for file in run.glob("*.json"):
        try:
            found = json.loads(file.read_text())
        except (OSError, ValueError):
            continue  # it ended, or is being written
        if isinstance(found, dict) and found.get("url"):
            addresses.add(urlsplit(found["url"]).netloc)
    return [{"targets": sorted(addresses)}] if addresses else []


def _configure(paths: Paths) -> None:
    """Write Dagster's configuration for Postgres into a new home; an existing file stays unchanged."""
    config = paths.dagster / "dagster.yaml"
    if not config.exists():
        paths.dagster.mkdir(parents=True, exist_ok=True)
        replace_text(config, (files("holdfast.infra") / "dagster" / "production.yaml").read_text())


if __name__ == "__main__":
    sys.exit(main())
