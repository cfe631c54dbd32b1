"""Sources that ship with Holdfast: files, SQL tables, and an HTTP endpoint. Each is a ``StatefulSource``."""
