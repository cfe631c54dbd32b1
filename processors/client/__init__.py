"""Clients that read a processor's state from its workers by HTTP: ``StateClient`` and ``AsyncStateClient``.

    method ──► question ──► conversation: which worker, redirect, retry, give up ──► answer
                               ▲ reply │ effect: ask, pause, look
                               └───────┴── the client does the effect, with threads or with asyncio

The conversation is one generator, which does no I/O. Both clients only do its effects, so they follow the same rules.

Invariants:
    - This folder imports neither the runtime nor the stores of the engine. A web service imports it quickly.
"""
