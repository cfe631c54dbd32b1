"""Aggregations for windows under the import path that Quix Streams uses: ``holdfast.dataframe.windows``."""
