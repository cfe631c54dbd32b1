"""The typed columns of the warehouse tables of stores. Columns are made from models or inferred from values.

A changed model or other values can change the columns. This package imports ``infra``.
"""
