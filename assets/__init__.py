"""The asset graph, one file per noun in flow order, and its Spark side."""
