"""Runs one deployed worker: ``python -m holdfast.processors --processor NAME --slot 0``. Loads no Dagster, no Spark.

Exit codes: 0 stopped as asked, 1 processing failed, 64 bad configuration, 69 no broker, 74 disk failure.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from typing import Any

import structlog

from holdfast.infra.deploy.marks import read_mark
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_PROCESSING_FAILED
from holdfast.infra.log import configure_logging
from holdfast.infra.masking import masked
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.privacy import keep_private
from holdfast.processors.application.registration import find_processor
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.serving.failure_file import record_failure


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.processors", description="Run one worker of a processor.")
    parser.add_argument("--processor", required=True, help="the processor's name")
    parser.add_argument("--slot", default="0", help="the worker's slot (default 0)")
    parser.add_argument("--paused", action="store_true", help="start paused: read no input before `POST /resume`")
    parser.add_argument(
        "--restore-from",
        choices=["anything", "changelog"],
        default="anything",
        help="source of lost local state: checkpoints and changelogs (anything, the default), or changelogs only",
    )
    parser.add_argument("--release", help="folder with a copy of the processor's code; comes first on the import path")
    parser.add_argument(
        "--begin-empty",
        action="append",
        default=[],
        metavar="STORE=ID",
        help="start this new store empty at the committed input offsets, while its changelog is the topic with this id "
        "(repeatable)",
    )
    parser.add_argument(
        "--shadow",
        metavar="STORE",
        help="rebuild this store beside the running processor, up to the offsets of `POST /inputs/until`",
    )
    parser.add_argument(
        "--reseed",
        action="append",
        default=[],
        metavar="STORE",
        help="rewrite the store's changelog from local state if the changelog was recreated or cut (repeatable)",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs one worker until it stops, and returns its exit code."""
    given = _parser().parse_args(arguments)
    # If the worker dies in C code, for example because of a bug in a package, Python logs the line where it died.
    faulthandler.enable()
    if given.release is not None:
        sys.path.insert(0, given.release)
    log = structlog.get_logger("worker")
    settings, began = None, time.time()
    try:
        settings = load_settings()
        configure_logging(settings.log_level, settings.log_format)
        keep_private(settings)
        definition = find_processor(settings, given.processor)
        application = definition.application if given.shadow is None else definition.application.shadow(given.shadow)
        mark = read_mark(settings.paths, given.processor)
        application.with_run_overrides(
            slot=given.slot,
            auto_create_topics=False,
            start=Start(
                paused=given.paused,
                from_changelog=given.restore_from == "changelog",
                reseed=frozenset(given.reseed),
                begin_empty=dict(each.split("=", 1) for each in given.begin_empty),
                shadow=given.shadow is not None,
                generation=0 if mark is None else mark.generation,
            ),
        )
        application.run_on(application.cluster(settings), settings, serve=True)
    except HoldfastError as error:
        log.error("worker stopped", processor=given.processor, **error.as_dict())
        _leave(settings, given, error.as_dict(), began)
        return error.exit_code
    except Exception as error:
        log.exception("worker broke", processor=given.processor)
        unexpected = {
            "type": type(error).__name__,
            "cause": "",
            "message": masked(str(error))[:2000],
            "action": f"Read the traceback in the worker's log, then `holdfast apply deploy {given.processor}`.",
            "fields": {},
        }
        _leave(settings, given, unexpected, began)
        return EXIT_PROCESSING_FAILED
    log.info("worker stopped as asked", processor=given.processor)
    return 0


def _leave(settings: Settings | None, given: argparse.Namespace, error: dict[str, Any], began: float) -> None:
    """Writes the error to the worker's endpoint file, which recovery reads.

    Without settings the path of that file is unknown, so the error is only in the log. The error of a shadow is not
    written, because recovery does not restart shadows.
    """
    if settings is not None and given.shadow is None:
        endpoint = settings.paths.endpoint(given.processor, given.slot)
        record_failure(endpoint, given.processor, given.slot, error, began)


if __name__ == "__main__":
    sys.exit(main())
