"""Lets this test process write bytecode until its cases are collected.

Where PYTHONDONTWRITEBYTECODE is set, each test process would otherwise rewrite the assertions of hypothesis and of all
test modules. ``tests/conftest.py`` imports this module before hypothesis.
"""

from __future__ import annotations

import sys

#: The setting of the environment, which holds again after the cases are collected.
BEFORE = sys.dont_write_bytecode
sys.dont_write_bytecode = False
