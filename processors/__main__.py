"""One deployed worker: ``python -m processors --processor NAME --slot 0``. Imports neither Dagster nor Spark.

Exit codes: 0 stopped as asked, 1 processing failed, 64 bad configuration, 69 no broker, 74 disk failure.
"""

from __future__ import annotations

import argparse
import sys

import structlog

from infra.errors import HoldfastError
from infra.log import configure_logging
from infra.settings import load_settings
from processors.registration import find_processor


def main(arguments: list[str] | None = None) -> int:
    """Run one worker; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m processors", description="Run one worker of a processor.")
    parser.add_argument("--processor", required=True, help="the processor's name")
    parser.add_argument("--slot", default="0", help="the worker's slot (default 0)")
    given = parser.parse_args(arguments)
    log = structlog.get_logger("worker")
    try:
        settings = load_settings()
        configure_logging(settings.log_level, settings.log_format)
        definition = find_processor(settings, given.processor)
        application = definition.application
        application.with_run_overrides(slot=given.slot, auto_create_topics=False)
        application.run_on(application.cluster(settings), settings, serve=True)
    except HoldfastError as error:
        log.error("worker stopped", processor=given.processor, **error.as_dict())
        return error.exit_code
    log.info("worker stopped as asked", processor=given.processor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
