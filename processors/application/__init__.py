"""The public side of processors: the declaration of an application, its import, and the start of its worker."""
