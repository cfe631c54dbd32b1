"""Typed columns of stores: models, inference, evolution. Imports ``infra``."""
