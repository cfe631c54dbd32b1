"""The face (application, arguments, registration) over two wings: ``engine`` and ``lifecycle``. Imports ``infra``."""

if __name__ != "holdfast.processors":
    raise ImportError(
        f"This folder was imported as {__name__!r}; expected 'holdfast.processors'. "
        "Write `from holdfast.processors import …`: a module with two names would exist twice."
    )
