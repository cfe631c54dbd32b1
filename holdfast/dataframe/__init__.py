"""Names of windows at the place where users of Quix Streams import them from: ``holdfast.dataframe.windows``."""
