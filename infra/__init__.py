"""The outside world: one adapter for each vendor library, and the settings. Imports nothing else of Holdfast."""

if __name__ != "holdfast.infra":
    raise ImportError(
        f"This folder was imported as {__name__!r}; expected 'holdfast.infra'. "
        "Write `from holdfast.infra import …`: a module with two names would exist twice."
    )
