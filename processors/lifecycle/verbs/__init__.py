"""One pure module for each verb (kind of change, such as ``deploy``). Each module makes a plan from facts.

It imports the package ``plans``.
"""
