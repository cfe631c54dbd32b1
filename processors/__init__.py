"""The processor packages: ``application`` (what users import), ``engine`` (the worker), and ``lifecycle`` (changes).

The package imports ``infra``.
"""

if __name__ != "holdfast.processors":
    raise ImportError(
        f"This folder was imported as {__name__!r}; expected 'holdfast.processors'. "
        "Write `from holdfast.processors import …`: a module with two names would exist twice."
    )
