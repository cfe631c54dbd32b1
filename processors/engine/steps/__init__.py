"""Base classes and checks that all kinds of steps use. This package imports no join, window or aggregate."""
