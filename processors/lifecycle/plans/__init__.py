"""Requests of operators, and their plans: the facts, the stages (steps), the explanation, and the execution of a plan.

It imports the module ``ports``.
"""
