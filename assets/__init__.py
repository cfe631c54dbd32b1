"""The Dagster asset graph: one module per kind of asset, and the Spark code. Imports ``processors`` and ``infra``."""

if __name__ != "holdfast.assets":
    raise ImportError(
        f"This folder was imported as {__name__!r}; expected 'holdfast.assets'. "
        "Write `from holdfast.assets import …`: a module with two names would exist twice."
    )
