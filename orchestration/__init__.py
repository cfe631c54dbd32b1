"""Dagster sensors and jobs, and the commands of ``holdfast``. Imports ``assets``, ``processors`` and ``infra``."""

if __name__ != "holdfast.orchestration":
    raise ImportError(
        f"This folder was imported as {__name__!r}; expected 'holdfast.orchestration'. "
        "Write `from holdfast.orchestration import …`: a module with two names would exist twice."
    )
