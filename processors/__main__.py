"""One deployed worker: ``python -m holdfast.processors --processor NAME --slot 0``. Imports neither Dagster nor Spark.

Exit codes: 0 stopped as asked, 1 processing failed, 64 bad configuration, 69 no broker, 74 disk failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import structlog

from holdfast.infra.errors import EXIT_PROCESSING_FAILED, HoldfastError
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import Settings, load_settings
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.serving.last_words import leave_last_words
from holdfast.processors.registration import find_processor


def main(arguments: list[str] | None = None) -> int:
    """Run one worker; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.processors", description="Run one worker of a processor.")
    parser.add_argument("--processor", required=True, help="the processor's name")
    parser.add_argument("--slot", default="0", help="the worker's slot (default 0)")
    parser.add_argument("--paused", action="store_true", help="read no input before it is told to resume")
    parser.add_argument(
        "--restore-from",
        choices=["anything", "changelog"],
        default="anything",
        help="what lost state is restored from: checkpoints and changelogs (default), or changelogs only",
    )
    parser.add_argument("--release", help="the folder that its code was copied to; imported from first")
    parser.add_argument(
        "--begin-empty", action="append", default=[], metavar="STORE", help="a new store, at the present input offsets"
    )
    parser.add_argument(
        "--shadow", metavar="STORE", help="build this store anew beside the processor, as far as it is told to"
    )
    parser.add_argument(
        "--reseed",
        action="append",
        default=[],
        metavar="STORE",
        help="make the store's changelog anew from local state, where it does not belong to it (repeatable)",
    )
    given = parser.parse_args(arguments)
    if given.release is not None:
        sys.path.insert(0, given.release)
    log = structlog.get_logger("worker")
    settings, began = None, time.time()
    try:
        settings = load_settings()
        configure_logging(settings.log_level, settings.log_format)
        definition = find_processor(settings, given.processor)
        application = definition.application if given.shadow is None else definition.application.shadow(given.shadow)
        application.with_run_overrides(
            slot=given.slot,
            auto_create_topics=False,
            start=Start(
                paused=given.paused,
                from_changelog=given.restore_from == "changelog",
                reseed=frozenset(given.reseed),
                begin_empty=frozenset(given.begin_empty),
                shadow=given.shadow is not None,
            ),
        )
        application.run_on(application.cluster(settings), settings, serve=True)
    except HoldfastError as error:
        log.error("worker stopped", processor=given.processor, **error.as_dict())
        _leave(settings, given, error.as_dict(), began)
        return error.exit_code
    except Exception as error:
        log.exception("worker broke", processor=given.processor)
        _leave(settings, given, _described(error), began)
        return EXIT_PROCESSING_FAILED
    log.info("worker stopped as asked", processor=given.processor)
    return 0


def _leave(settings: Settings | None, given: argparse.Namespace, error: dict[str, Any], began: float) -> None:
    """Say why it ends to whoever recovers it, where not even the settings told who that is: to the log alone."""
    if settings is not None and given.shadow is None:
        endpoint = settings.paths.endpoint(given.processor, given.slot)
        leave_last_words(endpoint, given.processor, given.slot, error, began)


def _described(error: Exception) -> dict[str, Any]:
    """An error that nobody raised on purpose, as those that were tell themselves."""
    action = "Read the traceback in the worker's log; mend the code, then deploy."
    return {"type": type(error).__name__, "cause": "", "message": str(error)[:2000], "action": action, "fields": {}}


if __name__ == "__main__":
    sys.exit(main())
