"""Ready-made sinks, under the import path that Quix Streams uses."""
