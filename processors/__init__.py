"""The processor packages: ``application`` (what users import), ``engine`` (the worker), and ``lifecycle`` (changes).

Modules of this package import only each other and ``infra``, and no other package of Holdfast.
"""

if __name__ != "holdfast.processors":
    raise ImportError(
        f"This folder was imported as {__name__!r}; expected 'holdfast.processors'. "
        "Write `from holdfast.processors import …`: a module with two names would exist twice."
    )
