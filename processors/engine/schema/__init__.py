"""The typed columns of the warehouse tables of stores. Columns are made from models or inferred from values.

If a model changes, or if new values have other types, the columns change, too.
"""
