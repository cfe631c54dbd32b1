"""The public part of processors: declaring an application, importing it, and starting its worker."""
