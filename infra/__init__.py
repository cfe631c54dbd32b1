"""Settings, and one adapter for each vendor library or system service. Imports no other folder of Holdfast."""

if __name__ != "holdfast.infra":
    raise ImportError(
        f"This folder was imported as {__name__!r}; expected 'holdfast.infra'. "
        "Write `from holdfast.infra import …`: Python loads a module once for each name that it is imported under."
    )
