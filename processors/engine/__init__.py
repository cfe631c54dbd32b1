"""One worker: it reads, folds, commits, restores and serves. Imports ``infra``."""
