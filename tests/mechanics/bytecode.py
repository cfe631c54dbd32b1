"""Lets this test process write bytecode until its test cases are collected, whatever the environment says.

If PYTHONDONTWRITEBYTECODE is set, pytest caches no rewritten assertions. Then each test process would rewrite the
assertions of hypothesis and of all test modules. ``tests/conftest.py`` imports this module before hypothesis.
"""

from __future__ import annotations

import sys

#: Whether PYTHONDONTWRITEBYTECODE is set. ``tests/conftest.py`` restores this value after the test cases are collected.
BEFORE = sys.dont_write_bytecode
sys.dont_write_bytecode = False
